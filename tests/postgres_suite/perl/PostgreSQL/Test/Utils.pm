# Stands in the place of PostgreSQL's module of this name: what files of src/test/subscription take from it.

package PostgreSQL::Test::Utils;

use strict;
use warnings;
use Exporter 'import';

our @EXPORT = qw(slurp_file append_to_file);
our $timeout_default = 60;

sub slurp_file
{
	my ($path, $offset) = @_;
	open(my $file, '<', $path) or die "could not read $path: $!";
	seek($file, $offset || 0, 0);
	local $/ = undef;
	my $content = <$file>;
	return defined $content ? $content : '';
}

sub append_to_file
{
	my ($path, $text) = @_;
	open(my $file, '>>', $path) or die "could not write $path: $!";
	print $file $text;
	close($file) or die "could not write $path: $!";
	return;
}

1;
