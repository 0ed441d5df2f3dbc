! Files created by Fortran. The first argument is the directory.
program units
  implicit none
  character(len=4096) :: dir
  integer :: number
  call get_command_argument(1, dir)
  open(newunit=number, file=trim(dir)//'/formatted', status='new', action='write')
  write(number, '(a)') 'text'
  close(number)
  open(newunit=number, file=trim(dir)//'/unformatted', form='unformatted', status='replace')
  write(number) 1.0d0
  close(number)
end program units
