// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

const (
	// KeyName is the TSIG key that may update and transfer the zones.
	KeyName = "fleet."
	// adminKey is the test's own, for what other people write.
	adminKey = "admin."

	startTimeout = 20 * time.Second
	queryTimeout = 5 * time.Second
)

// Config of a server.
type Config struct {
	// Zones that KeyName may update.
	Zones []string
	// Locked zones exist, and KeyName may not touch them.
	Locked []string
}

// Server is a running DNS server.
type Server struct {
	// Addr is host:port, for UDP and TCP.
	Addr string
	// Key is the secret of KeyName, in base64.
	Key string

	admin   string
	spec    procrun.Spec
	process *procrun.Process
}

// StartBIND starts BIND's named.
func StartBIND(t testing.TB, config Config) *Server {
	t.Helper()

	return start(t, config, "named", writeBIND)
}

// StartKnot starts Knot DNS.
func StartKnot(t testing.TB, config Config) *Server {
	t.Helper()

	return start(t, config, "knotd", writeKnot)
}

// writer writes a server's configuration into a folder and gives its arguments.
type writer func(t testing.TB, s *Server, dir string, config Config) []string

func start(t testing.TB, config Config, program string, write writer) *Server {
	t.Helper()

	path, err := find(program)
	if err != nil {
		t.Fatal(err)
	}

	s := &Server{Addr: loopback.Address(t), Key: newKey(t), admin: newKey(t)}
	dir := t.TempDir()

	for _, zone := range slices.Concat(config.Zones, config.Locked) {
		text := fmt.Sprintf("$ORIGIN %[1]s.\n$TTL 60\n@ SOA ns.%[1]s. hostmaster.%[1]s. 1 3600 600 86400 60\n@ NS ns.%[1]s.\n", zone)
		if !strings.HasSuffix(zone, ".arpa") {
			text += "ns A 127.0.0.1\n"
		} else {
			text = strings.ReplaceAll(text, "ns."+zone, "ns.example.net")
		}

		put(t, filepath.Join(dir, zone+".zone"), text)
	}

	s.spec = procrun.Spec{
		Path: path, Args: write(t, s, dir, config), LogPath: filepath.Join(dir, "log"), Grace: 5 * time.Second,
	}
	s.Start(t)
	t.Cleanup(func() {
		s.Stop(t)

		if t.Failed() {
			t.Log(s.process.LogTail())
		}
	})

	return s
}

// find looks where Debian puts servers, too, which is not on every user's path.
func find(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}

	path := "/usr/sbin/" + program
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find %s: hack/setup.sh packages installs it: %w", program, err)
	}

	return path, nil
}

// Start starts the server, again if it was stopped, and waits until it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()

	process, err := procrun.Start(context.Background(), s.spec)
	if err != nil {
		t.Fatal(err)
	}

	s.process = process

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()

	err = process.WaitReady(ctx, func(ctx context.Context) error {
		query := new(mdns.Msg)
		query.SetQuestion("version.bind.", mdns.TypeTXT)

		_, _, err := (&mdns.Client{Net: "tcp", Timeout: time.Second}).ExchangeContext(ctx, query, s.Addr)

		return err
	})
	if err != nil {
		t.Fatalf("wait for DNS server: %v\n%s", err, process.LogTail())
	}
}

// Stop ends the server.
func (s *Server) Stop(t testing.TB) {
	t.Helper()

	if err := s.process.Stop(); err != nil {
		t.Errorf("stop DNS server: %v", err)
	}
}

// Lookup gives the values of a name's records of one type ("A", "PTR", "TXT"), sorted.
func (s *Server) Lookup(t testing.TB, name, kind string) []string {
	t.Helper()

	query := new(mdns.Msg)
	query.SetQuestion(mdns.Fqdn(name), mdns.StringToType[kind])

	answer, _, err := (&mdns.Client{Net: "tcp", Timeout: queryTimeout}).Exchange(query, s.Addr)
	if err != nil {
		t.Fatalf("look up %s %s: %v", kind, name, err)
	}

	values := []string{}

	for _, rr := range answer.Answer {
		if txt, ok := rr.(*mdns.TXT); ok {
			values = append(values, strings.Join(txt.Txt, ""))
		} else {
			values = append(values, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
	}

	slices.Sort(values)

	return values
}

// Add writes records as somebody else, in the form of a zone file.
func (s *Server) Add(t testing.TB, zone string, records ...string) {
	t.Helper()
	s.update(t, zone, (*mdns.Msg).Insert, records)
}

// Remove removes records as somebody else.
func (s *Server) Remove(t testing.TB, zone string, records ...string) {
	t.Helper()
	s.update(t, zone, (*mdns.Msg).Remove, records)
}

func (s *Server) update(t testing.TB, zone string, change func(*mdns.Msg, []mdns.RR), records []string) {
	t.Helper()

	message := new(mdns.Msg)
	message.SetUpdate(mdns.Fqdn(zone))

	for _, text := range records {
		rr, err := mdns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}

		change(message, []mdns.RR{rr})
	}

	message.SetTsig(adminKey, mdns.HmacSHA256, 300, time.Now().Unix())

	client := &mdns.Client{Net: "tcp", Timeout: queryTimeout, TsigSecret: map[string]string{adminKey: s.admin}}

	answer, _, err := client.Exchange(message, s.Addr)
	if err != nil || answer.Rcode != mdns.RcodeSuccess {
		t.Fatalf("update zone %s: %v, %v", zone, err, answer)
	}
}

// All gives every record of a zone but those of the zone itself, in the form of a zone
// file, sorted.
func (s *Server) All(t testing.TB, zone string) []string {
	t.Helper()

	message := new(mdns.Msg)
	message.SetAxfr(mdns.Fqdn(zone))
	message.SetTsig(adminKey, mdns.HmacSHA256, 300, time.Now().Unix())

	transfer := &mdns.Transfer{TsigSecret: map[string]string{adminKey: s.admin}}

	answers, err := transfer.In(message, s.Addr)
	if err != nil {
		t.Fatalf("transfer zone %s: %v", zone, err)
	}

	values := []string{}

	for answer := range answers {
		if answer.Error != nil {
			t.Fatalf("transfer zone %s: %v", zone, answer.Error)
		}

		for _, rr := range answer.RR {
			kind := rr.Header().Rrtype
			if kind != mdns.TypeSOA && kind != mdns.TypeNS && rr.Header().Name != "ns."+mdns.Fqdn(zone) {
				values = append(values, strings.ReplaceAll(rr.String(), "\t", " "))
			}
		}
	}

	slices.Sort(values)

	return values
}

func newKey(t testing.TB) string {
	t.Helper()

	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		t.Fatal(err)
	}

	return base64.StdEncoding.EncodeToString(raw)
}

func put(t testing.TB, path, text string) {
	t.Helper()

	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
