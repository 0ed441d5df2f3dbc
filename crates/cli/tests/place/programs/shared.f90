! A file of several ranks. The first argument is its path.
program shared
  use mpi
  implicit none
  character(len=4096) :: path
  integer :: error, file, info, rank
  integer(kind=MPI_OFFSET_KIND) :: at
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call get_command_argument(1, path)
  call MPI_Info_create(info, error)
  call MPI_Info_set(info, 'file_size', '4194304', error)
  call MPI_File_open(MPI_COMM_WORLD, trim(path), MPI_MODE_CREATE + MPI_MODE_WRONLY + MPI_MODE_EXCL, info, file, error)
  if (error /= MPI_SUCCESS) call MPI_Abort(MPI_COMM_WORLD, 1, error)
  at = rank * 4
  call MPI_File_write_at_all(file, at, rank, 1, MPI_INTEGER, MPI_STATUS_IGNORE, error)
  call MPI_File_close(file, error)
  if (rank == 0) print '(a)', 'all is well'
  call MPI_Finalize(error)
end program shared
