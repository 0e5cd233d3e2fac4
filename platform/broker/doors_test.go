// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/brokers"
	"github.com/hyperfleet/hyperfleet/test/capture"
)

const (
	// secret is the password of the test users. Neither the password nor the URL may appear in any
	// output.
	secret = "s3cr3t-w0rd"
	user   = "fleet-user"
)

// users are the user of the tests, two users that change, and one that has only the required
// permissions.
func users() []brokers.User {
	// The names of all topics have this prefix.
	const own = "^t.*$"

	return []brokers.User{
		{Name: user, Password: secret}, {Name: "rotating", Password: secret}, {Name: "losing", Password: secret},
		{Name: "least", Password: secret, Configure: own, Write: own, Read: own},
	}
}

// site is a server with the settings to connect to it.
type site struct {
	conf   platform.Broker
	server *brokers.Server
}

func (s *site) open(t *testing.T) *broker.Broker {
	t.Helper()

	return opened(t, s.conf)
}

// with returns the settings with a URL that has no password.
func (s *site) with(url string) platform.Broker {
	conf := s.conf
	conf.RabbitMQ.URL, conf.RabbitMQ.URLFile = url, ""

	return conf
}

// inFile returns the settings with a URL in a file.
func (s *site) inFile(t *testing.T, url string) platform.Broker {
	t.Helper()

	conf := s.with("")
	conf.RabbitMQ.URLFile = filepath.Join(t.TempDir(), "url")
	writeFile(t, conf.RabbitMQ.URLFile, url+"\n")

	return conf
}

// as returns the server's URL with a user and its password.
func (s *site) as(who string) string { return within(s.server.URL, who+":"+secret) }

// within returns a URL with a user.
func within(url, who string) string { return strings.Replace(url, "://", "://"+who+"@", 1) }

// trusting adds the TLS files to the settings.
func trusting(conf platform.Broker, ca *brokers.CA, own *brokers.Cert) platform.Broker {
	if ca != nil {
		conf.RabbitMQ.CAFile = ca.File
	}

	if own != nil {
		conf.RabbitMQ.CertFile, conf.RabbitMQ.KeyFile = own.File, own.KeyFile
	}

	return conf
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()

	// The rename is atomic, so a reader sees either the old or the new content.
	must(t, os.WriteFile(file+".new", []byte(text), 0o600))

	must(t, os.Rename(file+".new", file))
}

// attempt opens a broker and checks, then and until the end of the test, that no output contains
// the password.
func attempt(t *testing.T, conf platform.Broker) (*broker.Broker, error) {
	t.Helper()

	said, registry := &capture.Buffer{}, prometheus.NewRegistry()

	t.Cleanup(func() {
		t.Log(said.String())
		discreet(t, "log", said.String())
		discreet(t, "metrics", fmt.Sprint(registry.Gather()))
	})

	logger := slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	b, err := broker.Open(t.Context(), conf, logger, registry)

	// On a busy machine the server may need longer than the client waits. Programs retry, too.
	for range 5 {
		if err == nil || !strings.Contains(err.Error(), "i/o timeout") {
			break
		}

		registry = prometheus.NewRegistry()
		b, err = broker.Open(t.Context(), conf, logger, registry)
	}

	if err != nil {
		discreet(t, "error", err.Error())

		return nil, err
	}

	t.Cleanup(b.Close)

	return b, nil
}

func opened(t *testing.T, conf platform.Broker) *broker.Broker {
	t.Helper()

	b, err := attempt(t, conf)
	must(t, err)

	return b
}

func discreet(t *testing.T, what, text string) {
	t.Helper()

	for _, word := range []string{secret, "new-" + secret, user + ":"} {
		if strings.Contains(text, word) {
			t.Errorf("%s shows %q: %s", what, word, text)
		}
	}
}

// refuses checks that an error contains all of the texts.
func refuses(t *testing.T, err error, says ...string) {
	t.Helper()

	if err == nil {
		t.Fatal("it is not refused")
	}

	t.Log(err)
	discreet(t, "error", err.Error())

	for _, word := range says {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not say %q", err, word)
		}
	}
}

// ill waits until the error of Health contains all of the texts.
func ill(t *testing.T, b *broker.Broker, says ...string) {
	t.Helper()

	eventually(t, "Health says "+strings.Join(says, ", "), func() bool {
		err := b.Health(t.Context())
		if err == nil {
			return false
		}

		discreet(t, "health", err.Error())

		return !slices.ContainsFunc(says, func(word string) bool { return !strings.Contains(err.Error(), word) })
	})
}

func well(t *testing.T, b *broker.Broker) {
	t.Helper()
	eventually(t, "it is well", func() bool { return b.Health(t.Context()) == nil })
}

// reaches waits until an event is published and handled.
func reaches(t *testing.T, b *broker.Broker, topic string, r *record) {
	t.Helper()

	number := 0

	eventually(t, "an event is handled", func() bool {
		number++

		if b.Publish(t.Context(), topic, event(t, "reached", number)) != nil {
			return false
		}

		// The event is not handled before the subscription is active.
		for range 20 {
			if slices.Contains(r.copy()["reached"], number) {
				return true
			}

			time.Sleep(lookAt)
		}

		return false
	})
}

// testTLS checks that a client with the right settings connects over TLS, and that errors name the
// setting to fix. It also checks that an expired certificate is reported, and that work continues
// after it is renewed.
func testTLS(t *testing.T, where *site) {
	t.Helper()

	ca := brokers.NewCA(t)
	cert := ca.IssueServer(t, "127.0.0.1")
	door := where.server.ListenTLS(t, cert, nil)
	right := trusting(where.inFile(t, within(door.URL, user+":"+secret)), ca, nil)

	testDoor(t, where, door, right, ca)

	b, topic, r := opened(t, right), topicOf(t), newRecord(t)
	testFanOut(t, b)
	subscribe(t, b, topic, "adapter", r.handle)
	door.ReplaceCertificate(t, ca.IssueExpired(t))
	ill(t, b, where.conf.Type, "url_file: the server's certificate has expired: renew it", "expired")

	_, err := attempt(t, right)
	refuses(t, err, "broker.rabbitmq.url_file: the server's certificate has expired: renew it")

	door.ReplaceCertificate(t, cert)
	well(t, b)
	reaches(t, b, topic, r)
}

// testDoor tries to connect with wrong settings.
func testDoor(t *testing.T, where *site, door *brokers.TLSListener, right platform.Broker, ca *brokers.CA) {
	t.Helper()

	var (
		field = "broker.rabbitmq"
		url   = within(door.URL, user+":"+secret)
		other = brokers.NewCA(t)
		half  = right
		none  = right
		wrong = right
		in    = func(url string) platform.Broker { return where.inFile(t, url) }
		trust = func(url string) platform.Broker { return trusting(in(url), ca, nil) }
	)

	half.RabbitMQ.KeyFile = ca.File
	none.RabbitMQ.CAFile = "/nowhere/ca.pem"
	wrong.RabbitMQ.CAFile = right.RabbitMQ.URLFile

	for name, row := range map[string]struct {
		conf platform.Broker
		says []string
	}{
		"another CA":                {trusting(right, other, nil), []string{field + ".ca_file: no CA in " + other.File}},
		"no CA":                     {in(url), []string{field + ".ca_file: it is not set"}},
		"no file of the CA":         {none, []string{field + ".ca_file: ", "/nowhere/ca.pem"}},
		"no certificate":            {wrong, []string{field + ".ca_file: ", "it contains no certificate"}},
		"half a certificate":        {half, []string{field + ": set both cert_file and key_file, or neither"}},
		"another host name":         {trust(strings.Replace(url, "127.0.0.1", "localhost", 1)), []string{field + ".url_file: write a host name", "localhost"}},
		"wrong password":            {trust(within(door.URL, user+":no-"+secret)), []string{field + ".url_file", "the server rejects the user"}},
		"nobody":                    {trusting(where.with(door.URL), ca, nil), []string{field + ".url", "the server rejects the user"}},
		"a password in sight":       {trusting(where.with(url), ca, nil), []string{field + ".url: the URL contains a password: put the URL into url_file"}},
		"no URL":                    {trust("://" + user + ":" + secret + "@%%%"), []string{field + ".url_file: write "}},
		"no %2F in a password":      {in(within(where.server.URL, user+":1/"+secret)), []string{field + ".url_file: write /"}},
		"nobody listens":            {trust(within("amqps://127.0.0.1:1/", user+":"+secret)), []string{"127.0.0.1:1"}},
		"two servers":               {in(url + "," + url), []string{field + ".url_file: write one URL"}},
		"two without vhosts":        {in(strings.TrimSuffix(url, "/") + "," + url), []string{field + ".url_file: write one URL"}},
		"a comma in a password":     {trust(within(door.URL, user+":12,"+secret)), []string{field + ".url_file", "the server rejects the user"}},
		"no TLS at its port":        {in(strings.Replace(url, "amqps", "amqp", 1)), []string{field + ".url_file: ", "amqps"}},
		"TLS at another's":          {trust(strings.Replace(where.as(user), "amqp", "amqps", 1)), []string{field + ".url_file: the server does not use TLS on this port"}},
		"a CA and no TLS":           {trust(where.as(user)), []string{field + ".url_file: amqp:// does not use TLS", "write amqps://"}},
		"a vhost that is not there": {trust(url + "nowhere"), []string{field + ".url_file: the vhost"}},
		"a vhost of others":         {trust(url + "closed"), []string{field + ".url_file: the vhost"}},
	} {
		_, err := attempt(t, row.conf)
		t.Log(name)
		refuses(t, err, row.says...)
	}
}

// testClientCertificate has a server that requires a client certificate. A renewed certificate is
// used for the next connection.
func testClientCertificate(t *testing.T, where *site) {
	t.Helper()

	ca, clients := brokers.NewCA(t), brokers.NewCA(t)
	cert := ca.IssueServer(t)
	door := where.server.ListenTLS(t, cert, clients)
	conf := trusting(where.inFile(t, within(door.URL, user+":"+secret)), ca, nil)

	_, err := attempt(t, conf)
	refuses(t, err, "broker.rabbitmq.cert_file: it is not set")

	_, err = attempt(t, trusting(conf, ca, ca.IssueClient(t, user)))
	refuses(t, err, "broker.rabbitmq.cert_file: the server rejects ")

	own := clients.IssueClient(t, user)
	testFanOut(t, opened(t, trusting(where.with(door.URL+"?auth_mechanism=external"), ca, own)))

	b := opened(t, trusting(conf, ca, own))
	well(t, b)
	replace(t, own, ca.IssueClient(t, user))
	door.ReplaceCertificate(t, cert)
	ill(t, b, "broker.rabbitmq.cert_file: the server rejects ")
	replace(t, own, clients.IssueClient(t, user))
	well(t, b)
}

// replace replaces a certificate's files with those of another certificate.
func replace(t *testing.T, old, with *brokers.Cert) {
	t.Helper()

	for to, from := range map[string]string{old.File: with.File, old.KeyFile: with.KeyFile} {
		text, err := os.ReadFile(from)
		must(t, err)

		writeFile(t, to, string(text))
	}
}

// testRotation changes the password at the server first and in the file later.
func testRotation(t *testing.T, where *site) {
	t.Helper()

	conf := where.inFile(t, where.as("rotating"))
	b, topic, r := opened(t, conf), topicOf(t), newRecord(t)
	subscribe(t, b, topic, "adapter", r.handle)

	where.server.SetUsers(t, brokers.User{Name: "rotating", Password: "new-" + secret})
	ill(t, b, "broker.rabbitmq.url_file", "the server rejects the user")

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()

	refuses(t, b.Publish(ctx, topic, event(t, "a", 1)), "broker.rabbitmq.url_file")

	writeFile(t, conf.RabbitMQ.URLFile, within(where.server.URL, "rotating:new-"+secret)+"\n")
	well(t, b)
	publish(t, b, topic, event(t, "a", 2))
	eventually(t, "what comes after it is handled", func() bool { return slices.Contains(r.copy()["a"], 2) })
}

// testPermissions removes permissions of a user that is connected.
func testPermissions(t *testing.T, where *site) {
	t.Helper()

	b, topic, r := opened(t, where.inFile(t, where.as("losing"))), topicOf(t), newRecord(t)
	subscribe(t, b, topic, "adapter", r.handle)
	where.server.SetUsers(t, brokers.User{Name: "losing", Password: secret, Write: brokers.MatchNothing})

	var err error

	eventually(t, "publishing is refused for the permission", func() bool {
		err = b.Publish(t.Context(), topic, event(t, "a", 1))

		return err != nil && strings.Contains(err.Error(), "the permissions")
	})
	refuses(t, err, "the permissions", "broker.rabbitmq.url_file", topic)
	ill(t, b, "the permissions")

	where.server.SetUsers(t, brokers.User{Name: "losing", Password: secret})
	eventually(t, "it is published", func() bool { return b.Publish(t.Context(), topic, event(t, "a", 2)) == nil })
	eventually(t, "it is handled", func() bool { return total(r.copy()) >= 1 })
	well(t, b)
}

// testLeastRights checks that the permissions in the reference are sufficient.
func testLeastRights(t *testing.T, where *site) {
	t.Helper()

	b := opened(t, where.inFile(t, where.as("least")))
	testFanOut(t, b)
	testDeadLetters(t, b)
}

// testAnotherHost changes the host name in the file to that of another server.
func testAnotherHost(t *testing.T, where *site) {
	t.Helper()

	first := forward(t, where.server.Address)
	url := where.as(user)
	conf := where.inFile(t, strings.Replace(url, where.server.Address, first.address, 1))
	b, topic, r := opened(t, conf), topicOf(t), newRecord(t)

	subscribe(t, b, topic, "adapter", r.handle)
	first.end()
	ill(t, b)
	writeFile(t, conf.RabbitMQ.URLFile, url)
	well(t, b)
	reaches(t, b, topic, r)
}

// forwarder is an address that forwards connections to another address.
type forwarder struct {
	address string
	end     func()
}

func forward(t *testing.T, target string) *forwarder {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)

	var (
		mu    sync.Mutex
		open  = []io.Closer{listener}
		ended bool
	)

	keep := func(conns ...net.Conn) {
		mu.Lock()
		defer mu.Unlock()

		for _, conn := range conns {
			open = append(open, conn)

			if ended {
				_ = conn.Close()
			}
		}
	}

	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}

			to, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", target)
			if err != nil {
				_ = from.Close()

				continue
			}

			keep(from, to)

			go func() { _, _ = io.Copy(to, from) }()
			go func() { _, _ = io.Copy(from, to) }()
		}
	}()

	end := func() {
		mu.Lock()
		defer mu.Unlock()

		ended = true

		for _, item := range open {
			_ = item.Close()
		}
	}
	t.Cleanup(end)

	return &forwarder{address: listener.Addr().String(), end: end}
}
