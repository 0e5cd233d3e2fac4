// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/brokers"
	"github.com/hyperfleet/hyperfleet/test/capture"
)

const (
	// secret is the password of user in tests; nothing may show it, and the URL neither.
	secret = "s3cr3t-w0rd"
	user   = "fleet-user"
)

// users are the one that tests are, and one that may do no more than it has to.
func users() []brokers.User {
	// Topics begin so.
	const own = "^t.*$"

	return []brokers.User{{Name: user, Password: secret}, {
		Name: "least", Password: secret,
		Configure: own, Write: own, Read: own,
	}}
}

// door is a server that does not let everybody in.
type door struct{ *site }

// startDoor starts a server; the settings have its URL alone.
func startDoor(t *testing.T, setup brokers.Setup) *door {
	t.Helper()

	d := &door{site: &site{conf: common(), silence: quiet}}
	d.conf.Type = platform.BrokerRabbitMQ
	d.server = brokers.StartRabbitMQ(t, setup)
	d.conf = d.with(d.server.URL)

	return d
}

// with gives the settings with a URL that has no password.
func (d *door) with(url string) platform.Broker {
	conf := d.conf
	conf.RabbitMQ.URL, conf.RabbitMQ.URLFile = url, ""

	return conf
}

// inFile gives the settings with a URL in a file.
func (d *door) inFile(t *testing.T, url string) platform.Broker {
	t.Helper()

	conf := d.with("")
	file := filepath.Join(t.TempDir(), "url")
	writeFile(t, file, url+"\n")

	conf.RabbitMQ.URLFile = file

	return conf
}

// as is the server's URL with a user, a password, or both.
func (d *door) as(who string) string { return strings.Replace(d.server.URL, "://", "://"+who+"@", 1) }

// trusting adds the files of TLS to settings.
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

	// A reader sees all of it or what was there.
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// attempt opens a broker and looks that nothing that is said has the password in it, then
// and until the end of the test.
func attempt(t *testing.T, conf platform.Broker) (*broker.Broker, error) {
	t.Helper()

	said, registry := &capture.Buffer{}, prometheus.NewRegistry()

	t.Cleanup(func() {
		t.Log(said.String())
		discreet(t, "log", said.String())
		discreet(t, "metrics", gathered(t, registry))
	})

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	type outcome struct {
		b   *broker.Broker
		err error
	}

	done := make(chan outcome, 1)

	go func() {
		b, err := broker.Open(ctx, conf, slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelDebug})), registry)
		done <- outcome{b, err}
	}()

	select {
	case got := <-done:
		if got.err != nil {
			discreet(t, "error", got.err.Error())
		} else {
			t.Cleanup(got.b.Close)
		}

		return got.b, got.err
	case <-ctx.Done():
		t.Fatal("Open() does not come back")

		return nil, ctx.Err()
	}
}

func opened(t *testing.T, conf platform.Broker) *broker.Broker {
	t.Helper()

	b, err := attempt(t, conf)
	if err != nil {
		t.Fatal(err)
	}

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

func gathered(t *testing.T, from prometheus.Gatherer) string {
	t.Helper()

	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}

	var out strings.Builder

	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&out, family); err != nil {
			t.Fatal(err)
		}
	}

	return out.String()
}

// refuses holds an error to what it has to say.
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

// ill waits until Health says all of it.
func ill(t *testing.T, b *broker.Broker, says ...string) {
	t.Helper()

	var last error

	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("Health() = %v", last)
		}
	})

	eventually(t, "Health says "+strings.Join(says, ", "), func() bool {
		last = b.Health(t.Context())
		if last == nil {
			return false
		}

		discreet(t, "health", last.Error())

		for _, word := range says {
			if !strings.Contains(last.Error(), word) {
				return false
			}
		}

		return true
	})
	t.Log(last)
}

func well(t *testing.T, b *broker.Broker) {
	t.Helper()

	var last error

	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("Health() = %v", last)
		}
	})
	eventually(t, "it is well", func() bool {
		last = b.Health(t.Context())

		return last == nil
	})
}

// TestSecured: brokers with TLS, users and passwords keep the promises, and whoever is
// refused is told which setting to fix.
func TestSecured(t *testing.T) { //nolint:tparallel // its subtests share a server, one after the other
	t.Parallel()

	ca := brokers.NewCA(t)
	setup := brokers.Setup{Cert: ca.Server(t, "127.0.0.1"), Users: users()}
	d := startDoor(t, setup)

	t.Run("refusals", func(t *testing.T) { testDoor(t, d, ca) })

	right := trusting(d.inFile(t, d.as(user+":"+secret)), ca, nil)
	where := &site{conf: right, server: d.server}

	t.Run("every subscription gets all, in order by key", func(t *testing.T) { testFanOut(t, where) })
	t.Run("a failing event waits alone", func(t *testing.T) { testRetry(t, where) })
	t.Run("the certificate expires", func(t *testing.T) { testExpired(t, d, setup, right) })
}

// testExpired: the server's certificate expires, and is renewed. What goes over it goes on.
func testExpired(t *testing.T, d *door, setup brokers.Setup, right platform.Broker) {
	t.Helper()

	b, topic, r := opened(t, right), topicOf(t), newRecord(t)
	subscribe(t, b, topic, "adapter", r.handle)
	well(t, b)

	old := setup
	old.Cert = setup.Cert.CA.Expired(t)
	d.server.Change(t, old)
	ill(t, b, d.conf.Type, "url_file: renew the certificate", "expired")

	_, err := attempt(t, right)
	refuses(t, err, "broker.rabbitmq.url_file: renew the certificate")

	d.server.Change(t, setup)
	well(t, b)
	reaches(t, b, topic, r)
}

// testDoor tries to get in by wrong settings.
func testDoor(t *testing.T, d *door, ca *brokers.CA) {
	t.Helper()

	var (
		field = "broker.rabbitmq"
		url   = d.as(user + ":" + secret)
		other = brokers.NewCA(t)
		right = trusting(d.inFile(t, url), ca, nil)
		plain = strings.Replace(url, "amqps://", "amqp://", 1)
		half  = right
		none  = right
		wrong = right
	)

	half.RabbitMQ.KeyFile = ca.File
	none.RabbitMQ.CAFile = "/nowhere/ca.pem"
	wrong.RabbitMQ.CAFile = right.RabbitMQ.URLFile

	type row struct {
		conf platform.Broker
		says []string
	}

	rows := map[string]row{
		"another CA":           {trusting(right, other, nil), []string{field + ".ca_file: the server's certificate is of no CA in " + other.File}},
		"no CA":                {d.inFile(t, url), []string{field + ".ca_file: it is not given"}},
		"no file of the CA":    {none, []string{field + ".ca_file: ", "/nowhere/ca.pem"}},
		"no certificate":       {wrong, []string{field + ".ca_file: ", "no certificate in it"}},
		"half a certificate":   {half, []string{field + ": give cert_file and key_file, both or none"}},
		"another host name":    {trusting(d.inFile(t, strings.Replace(url, "127.0.0.1", "localhost", 1)), ca, nil), []string{field + ".url_file: write a host name", "localhost"}},
		"wrong password":       {trusting(d.inFile(t, d.as(user+":no-"+secret)), ca, nil), []string{field + ".url_file", "the server does not take the user"}},
		"nobody":               {trusting(d.with(d.server.URL), ca, nil), []string{field + ".url", "the server does not take the user"}},
		"a password in sight":  {trusting(d.with(url), ca, nil), []string{field + ".url: it has a password in it: keep it in url_file"}},
		"no URL":               {trusting(d.inFile(t, "://"+user+":"+secret+"@%%%"), ca, nil), []string{field + ".url_file: write "}},
		"no %2F in a password": {d.inFile(t, strings.Replace(d.as(user+":1/"+secret), "amqps", "amqp", 1)), []string{field + ".url_file: write /"}},
		"nobody listens":       {trusting(d.inFile(t, strings.Replace(url, d.server.Address, "127.0.0.1:1", 1)), ca, nil), []string{"127.0.0.1:1"}},
	}
	rows["two servers"] = row{d.inFile(t, url+","+url), []string{field + ".url_file: write one URL"}}
	rows["two servers without vhosts"] = row{d.inFile(t, strings.TrimSuffix(url, "/")+","+url), []string{field + ".url_file: write one URL"}}
	rows["a comma in a password"] = row{trusting(d.inFile(t, d.as(user+":12,"+secret)), ca, nil), []string{field + ".url_file", "the server does not take the user"}}
	rows["no TLS"] = row{d.inFile(t, plain), []string{field + ".url_file: ", "amqps"}}
	rows["a CA and no TLS"] = row{trusting(d.inFile(t, plain), ca, nil), []string{field + ".url_file: amqp:// is without TLS", "write amqps://"}}
	rows["a vhost that is not there"] = row{trusting(d.inFile(t, url+"nowhere"), ca, nil), []string{field + ".url_file: the vhost"}}
	rows["a vhost of others"] = row{trusting(d.inFile(t, url+"closed"), ca, nil), []string{field + ".url_file: the vhost"}}

	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			_, err := attempt(t, row.conf)
			refuses(t, err, row.says...)
		})
	}
}

// testPlain: a server without TLS, and users.
func testPlain(t *testing.T, d *door) {
	t.Helper()

	conf := d.inFile(t, strings.Replace(d.as(user+":"+secret), "amqp://", "amqps://", 1))

	t.Run("a client with TLS", func(t *testing.T) {
		_, err := attempt(t, trusting(conf, brokers.NewCA(t), nil))
		refuses(t, err, "broker.rabbitmq.url_file: the server does not speak TLS there")
	})
	t.Run("the least permissions", func(t *testing.T) { testLeastRights(t, d) })
	t.Run("another host", func(t *testing.T) { testAnotherHost(t, d) })
	t.Run("passwords change", func(t *testing.T) { testRotation(t, d) })
	t.Run("permissions go", func(t *testing.T) { testPermissions(t, d) })
}

// testRotation: the server has another password, and the file has it later.
func testRotation(t *testing.T, d *door) {
	t.Helper()

	conf := d.inFile(t, d.as(user+":"+secret))
	b, topic, r := opened(t, conf), topicOf(t), newRecord(t)
	subscribe(t, b, topic, "adapter", r.handle)
	publish(t, b, topic, event(t, "a", 1))
	eventually(t, "the first is handled", func() bool { return total(r.copy()) == 1 })

	d.server.Change(t, brokers.Setup{Users: []brokers.User{{Name: user, Password: "new-" + secret}}})
	ill(t, b, "broker.rabbitmq.url_file", "the server does not take the user")

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()

	err := b.Publish(ctx, topic, event(t, "a", 2))
	refuses(t, err, "broker.rabbitmq.url_file")

	writeFile(t, conf.RabbitMQ.URLFile, d.as(user+":new-"+secret)+"\n")
	well(t, b)
	publish(t, b, topic, event(t, "a", 3))
	eventually(t, "what comes after it is handled", func() bool {
		got := r.copy()["a"]

		return len(got) > 0 && got[len(got)-1] == 3
	})

	d.server.Change(t, brokers.Setup{Users: users()})
}

// testPermissions: the user loses what it needs while it is at work.
func testPermissions(t *testing.T, d *door) {
	t.Helper()

	conf := d.inFile(t, d.as(user+":"+secret))
	b, topic := opened(t, conf), topicOf(t)
	r := newRecord(t)
	subscribe(t, b, topic, "adapter", r.handle)

	less := users()
	less[0].Write = brokers.Nothing
	d.server.Change(t, brokers.Setup{Users: less})

	var err error

	eventually(t, "publishing is refused for the permission", func() bool {
		err = b.Publish(t.Context(), topic, event(t, "a", 1))

		return err != nil && strings.Contains(err.Error(), "the permissions")
	})
	refuses(t, err, "the permissions", "broker.rabbitmq.url_file", topic)
	ill(t, b, "the permissions")

	d.server.Change(t, brokers.Setup{Users: users()})
	eventually(t, "it is published", func() bool { return b.Publish(t.Context(), topic, event(t, "a", 2)) == nil })
	eventually(t, "it is handled", func() bool { return total(r.copy()) >= 1 })
	well(t, b)
}

// TestClientCertificate: the server asks who the client is.
func TestClientCertificate(t *testing.T) {
	t.Parallel()

	const extra = "auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\nssl_cert_login_from = common_name\n"

	ca, clients := brokers.NewCA(t), brokers.NewCA(t)
	setup := brokers.Setup{Cert: ca.Server(t), ClientCA: clients, Users: users(), Extra: extra}
	d := startDoor(t, setup)
	conf := trusting(d.inFile(t, d.as(user+":"+secret)), ca, nil)

	_, err := attempt(t, conf)
	refuses(t, err, "broker.rabbitmq.cert_file: it is not given")

	_, err = attempt(t, trusting(conf, ca, ca.Client(t, user)))
	refuses(t, err, "broker.rabbitmq.cert_file: the server does not take ")

	own := clients.Client(t, user)
	testFanOut(t, &site{conf: trusting(conf, ca, own)})

	external := d.with(d.server.URL + "?auth_mechanism=external")
	testFanOut(t, &site{conf: trusting(external, ca, own)})

	// A certificate that is renewed is used with the next connection.
	b := opened(t, trusting(conf, ca, own))
	well(t, b)

	stranger := ca.Client(t, user)
	writeFile(t, own.File, readFile(t, stranger.File))
	writeFile(t, own.KeyFile, readFile(t, stranger.KeyFile))
	d.server.Change(t, setup)
	ill(t, b, "broker.rabbitmq.cert_file: the server does not take")

	fresh := clients.Client(t, user)
	writeFile(t, own.File, readFile(t, fresh.File))
	writeFile(t, own.KeyFile, readFile(t, fresh.KeyFile))
	well(t, b)
}

func readFile(t *testing.T, file string) string {
	t.Helper()

	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	return string(data)
}
