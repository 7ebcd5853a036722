"""GPU readings from NVML, dcgm-exporter, estimates and the simulation, behind one protocol."""
