# Sets attn_eigen_problem: why the Eigen that find_package(Eigen3) found can't be used, or empty.
#
# The version is compared here because find_package can't: find_package(Eigen3 3.4) refuses
# Eigen 5, and the range 3.4...5 refuses 3.4.0 (its version file knows no ranges).
set(attn_eigen_problem "")
if(NOT TARGET Eigen3::Eigen)
  set(attn_eigen_problem
    "Eigen was not found. Install it (Debian, Ubuntu: libeigen3-dev) or set Eigen3_DIR.")
elseif(Eigen3_VERSION VERSION_LESS 3.4 OR Eigen3_VERSION VERSION_GREATER_EQUAL 6)
  set(attn_eigen_problem
    "Eigen 3.4 or 5 is needed, but ${Eigen3_VERSION} was found in ${Eigen3_DIR}.")
endif()
