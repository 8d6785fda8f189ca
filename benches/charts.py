def write(folder, measured, sweeps):
    pass
