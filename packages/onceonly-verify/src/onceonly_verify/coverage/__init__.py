"""Line and branch coverage of the algorithms by the checks, compared with a list of places that no check reaches."""
