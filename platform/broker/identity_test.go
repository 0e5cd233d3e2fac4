// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/test/brokers"
)

// TestToken: NATS with a token.
func TestToken(t *testing.T) {
	t.Parallel()

	with := func(token string) brokers.Setup {
		return brokers.Setup{Extra: fmt.Sprintf("authorization { token: %q }\n", token)}
	}
	d := startDoor(t, platform.BrokerNATS, with(secret))
	conf := d.inFile(t, d.as(secret))
	testFanOut(t, &site{conf: conf})

	_, err := attempt(t, d.inFile(t, d.as("no-"+secret)))
	refuses(t, err, "broker.nats.url_file", "the server does not take the user, password or token")

	b := opened(t, conf)
	d.server.Change(t, with("new-"+secret))
	ill(t, b, "broker.nats.url_file", "the server does not take the user, password or token")
	writeFile(t, conf.NATS.URLFile, d.as("new-"+secret))
	well(t, b)
}

// TestCredentials: NATS with accounts and users that are signed.
func TestCredentials(t *testing.T) {
	t.Parallel()

	operator, account, system := pair(t, nkeys.CreateOperator), pair(t, nkeys.CreateAccount), pair(t, nkeys.CreateAccount)
	systems := jwt.NewAccountClaims(public(t, system))
	claims := jwt.NewAccountClaims(public(t, account))
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
	}

	d := startDoor(t, platform.BrokerNATS, brokers.Setup{Extra: fmt.Sprintf(
		"operator: %q\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: { %s: %q, %s: %q }\n",
		signed(t, jwt.NewOperatorClaims(public(t, operator)), operator), systems.Subject,
		claims.Subject, signed(t, claims, operator), systems.Subject, signed(t, systems, operator))})

	conf := d.conf
	conf.NATS.CredentialsFile = filepath.Join(t.TempDir(), "user.creds")

	_, err := attempt(t, conf)
	refuses(t, err, "broker.nats.credentials_file: ", conf.NATS.CredentialsFile)

	writeFile(t, conf.NATS.CredentialsFile, "nothing\n")

	_, err = attempt(t, conf)
	refuses(t, err, "broker.nats.credentials_file: ")

	// Of an account that the server does not know.
	writeFile(t, conf.NATS.CredentialsFile, credentials(t, pair(t, nkeys.CreateAccount)))

	_, err = attempt(t, conf)
	refuses(t, err, "credentials_file", "the server does not take")

	writeFile(t, conf.NATS.CredentialsFile, credentials(t, account))
	testFanOut(t, &site{conf: conf})
}

func pair(t *testing.T, create func() (nkeys.KeyPair, error)) nkeys.KeyPair {
	t.Helper()

	made, err := create()
	if err != nil {
		t.Fatal(err)
	}

	return made
}

func public(t *testing.T, of nkeys.KeyPair) string {
	t.Helper()

	key, err := of.PublicKey()
	if err != nil {
		t.Fatal(err)
	}

	return key
}

func signed(t *testing.T, claims jwt.Claims, by nkeys.KeyPair) string {
	t.Helper()

	token, err := claims.Encode(by)
	if err != nil {
		t.Fatal(err)
	}

	return token
}

// credentials are a new user's of an account.
func credentials(t *testing.T, account nkeys.KeyPair) string {
	t.Helper()

	own := pair(t, nkeys.CreateUser)

	seed, err := own.Seed()
	if err != nil {
		t.Fatal(err)
	}

	file, err := jwt.FormatUserConfig(signed(t, jwt.NewUserClaims(public(t, own)), account), seed)
	if err != nil {
		t.Fatal(err)
	}

	return string(file)
}

// testLeastRights: the permissions that the reference names are enough.
func testLeastRights(t *testing.T, d *door) {
	t.Helper()

	where := &site{conf: d.inFile(t, d.as("least:"+secret))}
	testFanOut(t, where)
	testDeadLetters(t, where)
}

// testAnotherHost: the server is found where the file says later.
func testAnotherHost(t *testing.T, d *door) {
	t.Helper()

	first := forward(t, d.server.Address)
	url := d.as(user + ":" + secret)
	conf := d.inFile(t, strings.Replace(url, d.server.Address, first.address, 1))
	b, topic, r := opened(t, conf), topicOf(t), newRecord(t)

	subscribe(t, b, topic, "adapter", r.handle)
	first.end()
	ill(t, b)
	writeFile(t, conf.NATS.URLFile, url)
	well(t, b)
	reaches(t, b, topic, r)
}

// forwarder is an address that leads to another one.
type forwarder struct {
	address string
	end     func()
}

func forward(t *testing.T, target string) *forwarder {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

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

		for _, one := range open {
			_ = one.Close()
		}
	}
	t.Cleanup(end)

	return &forwarder{address: listener.Addr().String(), end: end}
}
