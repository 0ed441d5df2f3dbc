! mpi_f08 and Fortran's own files: formatted, unformatted and stream access beside MPI-IO.
program arrays
    use mpi_f08
    implicit none
    integer, parameter :: n = 10000
    integer :: rank, ranks, next, i, unit, number
    integer(MPI_OFFSET_KIND) :: offset, length
    double precision :: written(n), found(n)
    character(1000) :: root, name, line
    type(MPI_File) :: file
    type(MPI_Status) :: status
    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks)
    call get_command_argument(1, root)
    next = mod(rank + 1, ranks)
    written = [(rank * 1.0d6 + i, i = 1, n)]
    offset = rank * n * 8_MPI_OFFSET_KIND
    call MPI_File_open(MPI_COMM_WORLD, trim(root)//'/array08', MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file)
    call MPI_File_write_at_all(file, offset, written, n, MPI_DOUBLE_PRECISION, status)
    call MPI_File_sync(file)
    call MPI_Barrier(MPI_COMM_WORLD)
    call MPI_File_sync(file)
    call MPI_File_read_at_all(file, next * n * 8_MPI_OFFSET_KIND, found, n, MPI_DOUBLE_PRECISION, status)
    call check(all(found == [(next * 1.0d6 + i, i = 1, n)]), 1)
    call MPI_File_get_size(file, length)
    call check(length == ranks * n * 8_MPI_OFFSET_KIND, 2)
    call MPI_File_close(file)

    write (name, '(A, "/text.", I0)') trim(root), rank
    open (newunit=unit, file=name, form='formatted', status='replace')
    do i = 1, 1000
        write (unit, '("line ", I0, " of rank ", I0)') i, rank
    end do
    close (unit)
    write (name, '(A, "/records.", I0)') trim(root), rank
    open (newunit=unit, file=name, form='unformatted', status='replace')
    write (unit) rank
    write (unit) written
    close (unit)
    write (name, '(A, "/stream.", I0)') trim(root), rank
    open (newunit=unit, file=name, form='unformatted', access='stream', status='replace')
    write (unit) written
    write (unit, pos=8 * 100 + 1) -1.0d0
    close (unit)
    call MPI_Barrier(MPI_COMM_WORLD)

    write (name, '(A, "/text.", I0)') trim(root), next
    open (newunit=unit, file=name, form='formatted', status='old', action='read')
    do i = 1, 1000
        read (unit, '(A)') line
    end do
    write (name, '("line 1000 of rank ", I0)') next
    call check(line == name, 3)
    close (unit)
    write (name, '(A, "/records.", I0)') trim(root), next
    open (newunit=unit, file=name, form='unformatted', status='old', action='read')
    read (unit) number
    read (unit) found
    call check(number == next .and. found(n) == next * 1.0d6 + n, 4)
    close (unit)
    write (name, '(A, "/stream.", I0)') trim(root), next
    open (newunit=unit, file=name, form='unformatted', access='stream', status='old', action='read')
    read (unit, pos=8 * 100 + 1) found(1), found(2)
    call check(found(1) == -1.0d0 .and. found(2) == next * 1.0d6 + 102, 5)
    close (unit)
    if (rank == 0) print '(I0, A)', ranks, ' ranks agree'
    call MPI_Finalize()
contains
    subroutine check(holds, place)
        logical, intent(in) :: holds
        integer, intent(in) :: place
        if (holds) return
        print *, 'rank', rank, 'went wrong at', place
        call MPI_Abort(MPI_COMM_WORLD, place)
    end subroutine
end program
