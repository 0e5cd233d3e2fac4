// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/brokers"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/silence"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

const (
	// secret is the password of the test users. Neither the password nor the URL may appear in any
	// output.
	secret = "s3cr3t-w0rd"
	user   = "fleet-user"
)

// newUsers returns the user of the tests, two users that change, and one that has only the required
// permissions.
func newUsers() []brokers.User {
	// The names of all topics have this prefix.
	const own = "^t.*$"

	return []brokers.User{
		{Name: user, Password: secret}, {Name: "rotating", Password: secret}, {Name: "losing", Password: secret},
		{Name: "least", Password: secret, Configure: own, Write: own, Read: own},
	}
}

// testServer is a server with the settings to connect to it.
type testServer struct {
	conf   platform.Broker
	server *brokers.Server
}

func (s *testServer) openBroker(t *testing.T) *broker.Broker {
	t.Helper()

	return mustOpen(t, s.conf)
}

// newConfig returns the settings with a URL that has no password.
func (s *testServer) newConfig(url string) platform.Broker {
	conf := s.conf
	conf.RabbitMQ.URL, conf.RabbitMQ.URLFile = url, ""

	return conf
}

// newFileConfig returns the settings with a URL in a file.
func (s *testServer) newFileConfig(t *testing.T, url string) platform.Broker {
	t.Helper()

	conf := s.newConfig("")
	conf.RabbitMQ.URLFile = filepath.Join(t.TempDir(), "url")
	writeFile(t, conf.RabbitMQ.URLFile, url+"\n")

	return conf
}

// newURL returns the server's URL with a user and its password.
func (s *testServer) newURL(user string) string { return addUser(s.server.URL, user+":"+secret) }

// addUser returns a URL with a user.
func addUser(url, user string) string { return strings.Replace(url, "://", "://"+user+"@", 1) }

// addTLS adds the TLS files to the settings.
func addTLS(conf platform.Broker, ca *brokers.CA, own *brokers.Cert) platform.Broker {
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
	must.Do(t, os.WriteFile(file+".new", []byte(text), 0o600))

	must.Do(t, os.Rename(file+".new", file))
}

// tryOpen opens a broker and checks, then and until the end of the test, that no output contains the
// password.
func tryOpen(t *testing.T, conf platform.Broker) (*broker.Broker, error) {
	t.Helper()

	logs, registry := &capture.Buffer{}, prometheus.NewRegistry()

	t.Cleanup(func() {
		t.Log(logs.String())
		requireNoSecret(t, "log", logs.String())
		requireNoSecret(t, "metrics", fmt.Sprint(registry.Gather()))
	})

	logger := slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	b, err := broker.Open(t.Context(), conf, logger, registry)

	// On a busy machine the server may need longer than the client waits. Programs are started again, too.
	for end := time.Now().Add(waitTimeout); err != nil && time.Now().Before(end) && isInterrupted(err); {
		registry = prometheus.NewRegistry()
		b, err = broker.Open(t.Context(), conf, logger, registry)
	}

	if err != nil {
		requireNoSecret(t, "error", err.Error())

		return nil, err
	}

	t.Cleanup(b.Close)

	return b, nil
}

// isInterrupted returns true if a connection ended before the server had said whether it accepts it.
func isInterrupted(err error) bool {
	return slices.ContainsFunc([]string{
		"i/o timeout", "deadline exceeded", "did not respond in time", "ended before the server had answered",
	}, func(text string) bool { return strings.Contains(err.Error(), text) })
}

func mustOpen(t *testing.T, conf platform.Broker) *broker.Broker {
	t.Helper()

	b, err := tryOpen(t, conf)
	must.Do(t, err)

	return b
}

func requireNoSecret(t *testing.T, what, text string) {
	t.Helper()

	for _, word := range []string{secret, "new-" + secret, user + ":"} {
		if strings.Contains(text, word) {
			t.Errorf("%s contains %q: %s", what, word, text)
		}
	}
}

// requireError checks that an error contains all of the texts.
func requireError(t *testing.T, err error, wantText ...string) {
	t.Helper()

	if err == nil {
		t.Fatal("got no error")
	}

	t.Log(err)
	requireNoSecret(t, "error", err.Error())

	for _, word := range wantText {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not contain %q", err, word)
		}
	}
}

// waitUntilUnhealthy waits until the error of Health contains all of the texts.
func waitUntilUnhealthy(t *testing.T, b *broker.Broker, wantText ...string) {
	t.Helper()

	timing.WaitUntil(t, "Health returns "+strings.Join(wantText, ", "), func() bool {
		err := b.Health(t.Context())
		if err == nil {
			return false
		}

		requireNoSecret(t, "health", err.Error())

		return !slices.ContainsFunc(wantText, func(word string) bool { return !strings.Contains(err.Error(), word) })
	})
}

func waitUntilHealthy(t *testing.T, b *broker.Broker) {
	t.Helper()
	timing.WaitUntil(t, "the broker is healthy", func() bool { return b.Health(t.Context()) == nil })
}

// waitForDelivery waits until an event is published and handled.
func waitForDelivery(t *testing.T, b *broker.Broker, topic string, r *recorder) {
	t.Helper()

	number := 0

	timing.WaitUntil(t, "an event is handled", func() bool {
		number++

		if b.Publish(t.Context(), topic, newEvent(t, "reached", number)) != nil {
			return false
		}

		// The event is not handled before the subscription is active.
		for range 20 {
			if slices.Contains(r.snapshot()["reached"], number) {
				return true
			}

			time.Sleep(pollInterval)
		}

		return false
	})
}

// testTLS checks that a client with the right settings connects over TLS, and that errors name the
// setting to fix. It also checks that an expired certificate is reported, and that work continues
// after it is renewed.
func testTLS(t *testing.T, where *testServer) {
	t.Helper()

	ca := brokers.NewCA(t)
	cert := ca.IssueServer(t, "127.0.0.1")
	door := where.server.ListenTLS(t, cert, nil)
	right := addTLS(where.newFileConfig(t, addUser(door.URL, user+":"+secret)), ca, nil)

	testConnectionErrors(t, where, door, right, ca)

	b, topic, r := mustOpen(t, right), newTopic(t), newRecorder(t)
	testFanOut(t, b)
	subscribe(t, b, topic, "adapter", r.handle)
	door.ReplaceCertificate(t, ca.IssueExpired(t))
	waitUntilUnhealthy(t, b, where.conf.Type, "url_file: the server's certificate has expired: renew it", "expired")

	_, err := tryOpen(t, right)
	requireError(t, err, "broker.rabbitmq.url_file: the server's certificate has expired: renew it")

	door.ReplaceCertificate(t, cert)
	waitUntilHealthy(t, b)
	waitForDelivery(t, b, topic, r)
}

// testConnectionErrors tries to connect with wrong settings.
func testConnectionErrors(t *testing.T, where *testServer, door *brokers.TLSListener, right platform.Broker, ca *brokers.CA) {
	t.Helper()

	var (
		field = "broker.rabbitmq"
		url   = addUser(door.URL, user+":"+secret)
		other = brokers.NewCA(t)
		half  = right
		none  = right
		wrong = right
		in    = func(url string) platform.Broker { return where.newFileConfig(t, url) }
		trust = func(url string) platform.Broker { return addTLS(in(url), ca, nil) }
	)

	half.RabbitMQ.KeyFile = ca.File
	none.RabbitMQ.CAFile = "/nowhere/ca.pem"
	wrong.RabbitMQ.CAFile = right.RabbitMQ.URLFile

	for name, row := range map[string]struct {
		conf     platform.Broker
		wantText []string
	}{
		"another CA":                       {addTLS(right, other, nil), []string{field + ".ca_file: no CA in " + other.File}},
		"no CA":                            {in(url), []string{field + ".ca_file: it is not set"}},
		"a missing CA file":                {none, []string{field + ".ca_file: ", "/nowhere/ca.pem"}},
		"no certificate":                   {wrong, []string{field + ".ca_file: ", "it contains no certificate"}},
		"a certificate without a key":      {half, []string{field + ": set both cert_file and key_file, or neither"}},
		"another host name":                {trust(strings.Replace(url, "127.0.0.1", "localhost", 1)), []string{field + ".url_file: write a host name", "localhost"}},
		"wrong password":                   {trust(addUser(door.URL, user+":no-"+secret)), []string{field + ".url_file", "the server rejects the user"}},
		"no user":                          {addTLS(where.newConfig(door.URL), ca, nil), []string{field + ".url", "the server rejects the user"}},
		"a password in the URL setting":    {addTLS(where.newConfig(url), ca, nil), []string{field + ".url: the URL contains a password: put the URL into url_file"}},
		"an invalid URL":                   {trust("://" + user + ":" + secret + "@%%%"), []string{field + ".url_file: write "}},
		"an unescaped slash in a password": {in(addUser(where.server.URL, user+":1/"+secret)), []string{field + ".url_file: write /"}},
		"no server":                        {trust(addUser("amqps://127.0.0.1:1/", user+":"+secret)), []string{"127.0.0.1:1"}},
		"two servers":                      {in(url + "," + url), []string{field + ".url_file: write one URL"}},
		"two without vhosts":               {in(strings.TrimSuffix(url, "/") + "," + url), []string{field + ".url_file: write one URL"}},
		"a comma in a password":            {trust(addUser(door.URL, user+":12,"+secret)), []string{field + ".url_file", "the server rejects the user"}},
		"amqp:// at a TLS port":            {in(strings.Replace(url, "amqps", "amqp", 1)), []string{field + ".url_file: ", "amqps"}},
		"amqps:// at a plain port":         {trust(strings.Replace(where.newURL(user), "amqp", "amqps", 1)), []string{field + ".url_file: the server does not use TLS on this port"}},
		"a CA without TLS":                 {trust(where.newURL(user)), []string{field + ".url_file: amqp:// does not use TLS", "write amqps://"}},
		"a missing vhost":                  {trust(url + "nowhere"), []string{field + ".url_file: the vhost"}},
		"a vhost without permission":       {trust(url + "closed"), []string{field + ".url_file: the vhost"}},
	} {
		_, err := tryOpen(t, row.conf)
		t.Log(name)
		requireError(t, err, row.wantText...)
	}
}

// testClientCertificate has a server that requires a client certificate. A renewed certificate is
// used for the next connection.
func testClientCertificate(t *testing.T, where *testServer) {
	t.Helper()

	ca, clients := brokers.NewCA(t), brokers.NewCA(t)
	cert := ca.IssueServer(t)
	door := where.server.ListenTLS(t, cert, clients)
	conf := addTLS(where.newFileConfig(t, addUser(door.URL, user+":"+secret)), ca, nil)

	_, err := tryOpen(t, conf)
	requireError(t, err, "broker.rabbitmq.cert_file: it is not set")

	_, err = tryOpen(t, addTLS(conf, ca, ca.IssueClient(t, user)))
	requireError(t, err, "broker.rabbitmq.cert_file: the server rejects ")

	own := clients.IssueClient(t, user)
	testFanOut(t, mustOpen(t, addTLS(where.newConfig(door.URL+"?auth_mechanism=external"), ca, own)))

	b := mustOpen(t, addTLS(conf, ca, own))
	waitUntilHealthy(t, b)
	replaceCertificate(t, own, ca.IssueClient(t, user))
	door.ReplaceCertificate(t, cert)
	waitUntilUnhealthy(t, b, "broker.rabbitmq.cert_file: the server rejects ")
	replaceCertificate(t, own, clients.IssueClient(t, user))
	waitUntilHealthy(t, b)
}

// replaceCertificate replaces a certificate's files with those of another certificate.
func replaceCertificate(t *testing.T, old, with *brokers.Cert) {
	t.Helper()

	for to, from := range map[string]string{old.File: with.File, old.KeyFile: with.KeyFile} {
		text, err := os.ReadFile(from)
		must.Do(t, err)

		writeFile(t, to, string(text))
	}
}

// testRotation changes the password at the server first and in the file later.
func testRotation(t *testing.T, where *testServer) {
	t.Helper()

	conf := where.newFileConfig(t, where.newURL("rotating"))
	b, topic, r := mustOpen(t, conf), newTopic(t), newRecorder(t)
	subscribe(t, b, topic, "adapter", r.handle)

	where.server.SetUsers(t, brokers.User{Name: "rotating", Password: "new-" + secret})
	waitUntilUnhealthy(t, b, "broker.rabbitmq.url_file", "the server rejects the user")

	// On a slow machine, the server may not respond in time.
	timing.WaitUntil(t, "publishing fails with an error that names the setting", func() bool {
		err := b.Publish(t.Context(), topic, newEvent(t, "a", 1))

		return err != nil && strings.Contains(err.Error(), "broker.rabbitmq.url_file")
	})

	writeFile(t, conf.RabbitMQ.URLFile, addUser(where.server.URL, "rotating:new-"+secret)+"\n")
	waitUntilHealthy(t, b)
	publish(t, b, topic, newEvent(t, "a", 2))
	timing.WaitUntil(t, "later events are handled", func() bool { return slices.Contains(r.snapshot()["a"], 2) })
}

// testPermissions removes permissions of a user that is connected.
func testPermissions(t *testing.T, where *testServer) {
	t.Helper()

	b, topic, r := mustOpen(t, where.newFileConfig(t, where.newURL("losing"))), newTopic(t), newRecorder(t)
	subscribe(t, b, topic, "adapter", r.handle)
	where.server.SetUsers(t, brokers.User{Name: "losing", Password: secret, Write: brokers.MatchNothing})

	var err error

	timing.WaitUntil(t, "publishing fails with a permission error", func() bool {
		err = b.Publish(t.Context(), topic, newEvent(t, "a", 1))

		return err != nil && strings.Contains(err.Error(), "the permissions")
	})
	requireError(t, err, "the permissions", "broker.rabbitmq.url_file", topic)
	waitUntilUnhealthy(t, b, "the permissions")

	where.server.SetUsers(t, brokers.User{Name: "losing", Password: secret})
	timing.WaitUntil(t, "the event is published", func() bool { return b.Publish(t.Context(), topic, newEvent(t, "a", 2)) == nil })
	timing.WaitUntil(t, "the event is handled", func() bool { return countEvents(r.snapshot()) >= 1 })
	waitUntilHealthy(t, b)
}

// testMinimalPermissions checks that the permissions in the reference are sufficient.
func testMinimalPermissions(t *testing.T, where *testServer) {
	t.Helper()

	b := mustOpen(t, where.newFileConfig(t, where.newURL("least")))
	testFanOut(t, b)
	testDeadLetters(t, b)
}

// testAnotherHost changes the host name in the file to that of another server.
func testAnotherHost(t *testing.T, where *testServer) {
	t.Helper()

	first := silence.NewProxy(t, where.server.Address)
	url := where.newURL(user)
	conf := where.newFileConfig(t, strings.Replace(url, where.server.Address, first.Address, 1))
	b, topic, r := mustOpen(t, conf), newTopic(t), newRecorder(t)

	subscribe(t, b, topic, "adapter", r.handle)
	first.Close()
	waitUntilUnhealthy(t, b)
	writeFile(t, conf.RabbitMQ.URLFile, url)
	waitUntilHealthy(t, b)
	waitForDelivery(t, b, topic, r)
}
