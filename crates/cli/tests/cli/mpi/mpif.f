! mpif.h: ranks write their parts of an array together, by a view, and read those of their neighbours.
      program arrays
      implicit none
      include 'mpif.h'
      integer n
      parameter (n = 10000)
      integer rank, ranks, next, file, code, i, part
      integer status(MPI_STATUS_SIZE)
      integer(kind=MPI_OFFSET_KIND) offset
      double precision written(n), found(n)
      character*1000 name
      call MPI_Init(code)
      call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
      call MPI_Comm_size(MPI_COMM_WORLD, ranks, code)
      call getarg(1, name)
      do i = 1, n
         written(i) = rank * 1.0d6 + i
      end do
      call MPI_File_open(MPI_COMM_WORLD, trim(name)//'/array77',
     &     MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file, code)
      if (code .ne. MPI_SUCCESS) call fail(1)
      call MPI_Type_contiguous(n, MPI_DOUBLE_PRECISION, part, code)
      call MPI_Type_commit(part, code)
      offset = rank
      offset = offset * n * 8
      call MPI_File_set_view(file, offset, MPI_DOUBLE_PRECISION, part,
     &     'native', MPI_INFO_NULL, code)
      if (code .ne. MPI_SUCCESS) call fail(2)
      call MPI_File_write_all(file, written, n, MPI_DOUBLE_PRECISION,
     &     status, code)
      if (code .ne. MPI_SUCCESS) call fail(3)
      call MPI_File_sync(file, code)
      call MPI_Barrier(MPI_COMM_WORLD, code)
      call MPI_File_sync(file, code)
      next = mod(rank + 1, ranks)
      offset = 0
      call MPI_File_set_view(file, offset, MPI_DOUBLE_PRECISION,
     &     MPI_DOUBLE_PRECISION, 'native', MPI_INFO_NULL, code)
      offset = next
      offset = offset * n
      call MPI_File_read_at(file, offset, found, n,
     &     MPI_DOUBLE_PRECISION, status, code)
      if (code .ne. MPI_SUCCESS) call fail(4)
      do i = 1, n
         if (found(i) .ne. next * 1.0d6 + i) call fail(5)
      end do
      call MPI_File_close(file, code)
      if (rank .eq. 0) print '(I0, A)', ranks, ' ranks agree'
      call MPI_Finalize(code)
      end

      subroutine fail(place)
      implicit none
      include 'mpif.h'
      integer place, code
      print *, 'it went wrong at', place
      call MPI_Abort(MPI_COMM_WORLD, place, code)
      end
