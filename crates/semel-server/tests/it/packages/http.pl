# HTTP with what every Debian has.
#   http.pl serve PORT        an API: every POST is another charge
#   http.pl post PORT KEY     sends a POST with this key; prints status, whether it is an answer from the record, and the body
use strict;
use warnings;
use IO::Socket::INET;

my ($what, $port, $key) = @ARGV;
if ($what eq 'serve') {
    my $server = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 16, ReuseAddr => 1) or die "$port: $!";
    my $charges = 0;
    while (my $client = $server->accept) {
        my $length = 0;
        while (my $line = <$client>) {
            $length = $1 if $line =~ /^content-length: (\d+)/i;
            last if $line =~ /^\r?\n$/;
        }
        read($client, my $ignored, $length);
        my $body = 'charge-' . ++$charges;
        print $client "HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: " . length($body) . "\r\n\r\n$body";
        close $client;
    }
}
my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 30) or die "$port: $!";
print $socket "POST /v1/payments HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer me\r\n"
    . "Idempotency-Key: $key\r\nContent-Length: 2\r\n\r\n{}";
my $answer = join '', <$socket>;
my ($status) = $answer =~ m{^HTTP/1.1 (\d+)} or die $answer;
my $replayed = $answer =~ /^idempotent-replayed: true/im ? 'true' : 'false';
my ($body) = $answer =~ /\r\n\r\n(.*)\z/s;
print "$status $replayed $body\n";
