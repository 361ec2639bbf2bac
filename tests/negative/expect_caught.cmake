# A planted bug must be caught: PROGRAM passes as it is, and fails in each of CATCHERS (names of
# tests, separated by commas) when BUG is switched on. A crash, a time-out or another failing test
# alone is not good enough.
foreach(variable IN ITEMS PROGRAM BUG CATCHERS)
  if(NOT ${variable})
    message(FATAL_ERROR "${variable} is not set")
  endif()
endforeach()
string(REPLACE "," ";" catchers "${CATCHERS}")
string(REPLACE "," ":" filter "${CATCHERS}")
list(LENGTH catchers count)

execute_process(
  COMMAND ${CMAKE_COMMAND} -E env --unset=KVC_PLANT ${PROGRAM} --gtest_filter=${filter}
  RESULT_VARIABLE healthy_result OUTPUT_VARIABLE healthy_output ERROR_VARIABLE healthy_output)
if(NOT healthy_result EQUAL 0)
  message(FATAL_ERROR "fails without the bug (${healthy_result}):\n${healthy_output}")
endif()
if(NOT healthy_output MATCHES "\\[==========\\] ${count} tests? from")
  message(FATAL_ERROR "not all of ${CATCHERS} exist:\n${healthy_output}")
endif()

execute_process(
  COMMAND ${CMAKE_COMMAND} -E env KVC_PLANT=${BUG} ${PROGRAM} --gtest_filter=${filter}
  RESULT_VARIABLE planted_result OUTPUT_VARIABLE planted_output ERROR_VARIABLE planted_output)
if(NOT planted_result EQUAL 1)
  message(FATAL_ERROR "'${BUG}' went unnoticed (${planted_result}):\n${planted_output}")
endif()
foreach(catcher IN LISTS catchers)
  if(NOT planted_output MATCHES "\\[  FAILED  \\] ${catcher}[\n ,]")
    message(FATAL_ERROR "'${BUG}' went unnoticed by ${catcher}:\n${planted_output}")
  endif()
endforeach()
message(STATUS "'${BUG}' is caught by ${CATCHERS}")
