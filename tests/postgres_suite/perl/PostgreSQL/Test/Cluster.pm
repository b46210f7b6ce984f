# Stands in the place of PostgreSQL's module of this name: the calls that files of src/test/subscription make, passed on to the
# harness (tap_harness.py), which has the servers and makes groups of subscriptions.

package PostgreSQL::Test::Cluster;

use strict;
use warnings;
use IO::Socket::INET;
use JSON::PP;
use Test::More;
use PostgreSQL::Test::Utils;

my $harness;
my $json = JSON::PP->new->utf8->allow_nonref;

sub ask
{
	my ($node, $call, @arguments) = @_;
	$harness ||= IO::Socket::INET->new(PeerAddr => "127.0.0.1:$ENV{PGSLUICE_HARNESS_PORT}")
	  or die "the harness does not answer: $@";
	print $harness $json->encode({ node => $node, call => $call, arguments => \@arguments }), "\n";
	my $line = <$harness>;
	die "the harness ended during $call\n" unless defined $line;
	my $answer = $json->decode($line);
	diag("pgsluice: $_") for @{ $answer->{notes} };
	die "$answer->{error}\n" if defined $answer->{error};
	return $answer->{value};
}

sub bytes
{
	my ($text) = @_;
	utf8::encode($text) if utf8::is_utf8($text);
	return $text;
}

sub new
{
	my ($class, $name) = @_;
	ask($name, 'new');
	return bless { name => $name }, $class;
}

sub name { return $_[0]{name}; }

sub init
{
	my ($self, %options) = @_;
	ask($self->{name}, 'init', $options{extra} || []);
	return;
}

sub append_conf
{
	my ($self, $file, $text) = @_;
	ask($self->{name}, 'append_conf', $file, $text);
	return;
}

sub start { my ($self) = @_; ask($self->{name}, 'start'); return 1; }
sub stop { my ($self) = @_; ask($self->{name}, 'stop'); return 1; }
sub restart { my ($self) = @_; $self->stop; return $self->start; }
sub reload { my ($self) = @_; ask($self->{name}, 'reload'); return; }
sub rotate_logfile { my ($self) = @_; ask($self->{name}, 'rotate_logfile'); return $self->logfile; }
sub logfile { my ($self) = @_; return ask($self->{name}, 'logfile'); }
sub data_dir { my ($self) = @_; return ask($self->{name}, 'data_dir'); }
sub host { my ($self) = @_; return ask($self->{name}, 'host'); }
sub port { my ($self) = @_; return ask($self->{name}, 'port'); }

sub connstr
{
	my ($self, $database) = @_;
	my $address = 'host=' . $self->host . ' port=' . $self->port . ' user=postgres';
	return defined $database ? "$address dbname=$database" : $address;
}

# As PostgreSQL's: in a list its exit code, what it printed and what it said; else what it printed.
sub psql
{
	my ($self, $database, $statements, %options) = @_;
	my $answer = ask($self->{name}, 'psql', $database, $statements, $options{on_error_stop} // 1, $options{extra_params} || [],
		$options{connstr});
	my ($code, $output, $said) = map { ref $_ ? $_ : bytes($_) } @{$answer}{qw(code stdout stderr)};
	chomp $output;
	chomp $said;
	${ $options{stdout} } = $output if ref $options{stdout};
	${ $options{stderr} } = $said if ref $options{stderr};
	die "psql of $self->{name} ended with $code: $said\nwhile running: $statements\n" if $options{on_error_die} && $code;
	return wantarray ? ($code, $output, $said) : $code;
}

sub safe_psql
{
	my ($self, $database, $statements, %options) = @_;
	my (undef, $output, $said) = $self->psql($database, $statements, %options, on_error_stop => 1, on_error_die => 1);
	print STDERR "# $said\n" if $said;
	return $output;
}

sub poll_query_until
{
	my ($self, $database, $query, $expected) = @_;
	return ask($self->{name}, 'poll_query_until', $database, $query, $expected // 't');
}

sub wait_for_catchup
{
	my ($self, $subscription) = @_;
	$subscription = $subscription->name if ref $subscription;
	ask($self->{name}, 'wait_for_catchup', $subscription);
	return;
}

sub wait_for_subscription_sync
{
	my ($self) = @_;
	ask($self->{name}, 'wait_for_subscription_sync');
	return;
}

# A line that never comes is a test of the file's own that fails, so that what follows is tried too.
sub wait_for_log
{
	my ($self, $pattern, $offset) = @_;
	$offset ||= 0;
	for my $attempt (1 .. 20)
	{
		return $offset + length slurp_file($self->logfile, $offset) if slurp_file($self->logfile, $offset) =~ m/$pattern/;
		select(undef, undef, undef, 0.25);
	}
	fail("the log of $self->{name} has $pattern");
	return -s $self->logfile;
}

sub log_contains
{
	my ($self, $pattern, $offset) = @_;
	return slurp_file($self->logfile, $offset) =~ m/$pattern/;
}

sub background_psql
{
	my ($self, $database) = @_;
	my $session = ask($self->{name}, 'background_psql', $database);
	return bless { node => $self->{name}, session => $session }, 'PostgreSQL::Test::BackgroundPsql';
}

package PostgreSQL::Test::BackgroundPsql;

sub query_safe
{
	my ($self, $statements) = @_;
	return PostgreSQL::Test::Cluster::ask($self->{node}, 'query_safe', $self->{session}, $statements);
}

sub query { return query_safe(@_); }

sub quit
{
	my ($self) = @_;
	PostgreSQL::Test::Cluster::ask($self->{node}, 'quit', $self->{session});
	return;
}

1;
