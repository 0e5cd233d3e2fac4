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
	// KeyName is the name of the TSIG key that may update and transfer the zones.
	KeyName = "fleet."
	// adminKey is the name of the TSIG key with which a test makes changes as another user.
	adminKey = "admin."

	startTimeout = 20 * time.Second
	queryTimeout = 5 * time.Second
)

// Config configures a server.
type Config struct {
	// Zones are the zones that KeyName may update and transfer.
	Zones []string
	// Locked are additional zones that KeyName may neither update nor transfer.
	Locked []string
}

// Server is a running DNS server.
type Server struct {
	// Addr is the server's host:port for UDP and TCP.
	Addr string
	// Key is the secret of the TSIG key KeyName in base64.
	Key string

	admin   string
	spec    procrun.Spec
	process *procrun.Process
}

// StartBIND starts BIND's named.
func StartBIND(t testing.TB, config Config) *Server {
	t.Helper()

	return startServer(t, config, "named", writeBIND)
}

// StartKnot starts Knot DNS.
func StartKnot(t testing.TB, config Config) *Server {
	t.Helper()

	return startServer(t, config, "knotd", writeKnot)
}

// configWriter writes a server's configuration into a directory, and returns the arguments of its program.
type configWriter func(t testing.TB, s *Server, dir string, config Config) []string

func startServer(t testing.TB, config Config, program string, write configWriter) *Server {
	t.Helper()

	path, err := findProgram(program)
	if err != nil {
		t.Fatal(err)
	}

	s := &Server{Addr: loopback.Address(t), Key: generateKey(t), admin: generateKey(t)}
	dir := t.TempDir()

	for _, zone := range slices.Concat(config.Zones, config.Locked) {
		text := fmt.Sprintf("$ORIGIN %[1]s.\n$TTL 60\n@ SOA ns.%[1]s. hostmaster.%[1]s. 1 3600 600 86400 60\n@ NS ns.%[1]s.\n", zone)
		if !strings.HasSuffix(zone, ".arpa") {
			text += "ns A 127.0.0.1\n"
		} else {
			text = strings.ReplaceAll(text, "ns."+zone, "ns.example.net")
		}

		writeFile(t, filepath.Join(dir, zone+".zone"), text)
	}

	s.spec = procrun.Spec{
		Path: path, Args: write(t, s, dir, config), LogPath: filepath.Join(dir, "log"), GracePeriod: 5 * time.Second,
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

// findProgram returns the path of a program from PATH or /usr/sbin, where Debian installs servers and
// which is not in every user's PATH.
func findProgram(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}

	path := "/usr/sbin/" + program
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find %s: run hack/setup.sh packages to install it: %w", program, err)
	}

	return path, nil
}

// Start starts the server after Stop, and waits until it answers queries.
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

// Stop stops the server.
func (s *Server) Stop(t testing.TB) {
	t.Helper()

	if err := s.process.Stop(); err != nil {
		t.Errorf("stop DNS server: %v", err)
	}
}

// Lookup returns the values of a name's records of one type ("A", "PTR", "TXT"), sorted.
func (s *Server) Lookup(t testing.TB, name, kind string) []string {
	t.Helper()

	query := new(mdns.Msg)
	query.SetQuestion(mdns.Fqdn(name), mdns.StringToType[kind])

	response, _, err := (&mdns.Client{Net: "tcp", Timeout: queryTimeout}).Exchange(query, s.Addr)
	if err != nil {
		t.Fatalf("look up %s %s: %v", kind, name, err)
	}

	values := []string{}

	for _, rr := range response.Answer {
		if txt, ok := rr.(*mdns.TXT); ok {
			values = append(values, strings.Join(txt.Txt, ""))
		} else {
			values = append(values, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
	}

	slices.Sort(values)

	return values
}

// AddRecords adds records in zone file format, as another user would.
func (s *Server) AddRecords(t testing.TB, zone string, records ...string) {
	t.Helper()
	s.update(t, zone, (*mdns.Msg).Insert, records)
}

// RemoveRecords removes records in zone file format, as another user would.
func (s *Server) RemoveRecords(t testing.TB, zone string, records ...string) {
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

	response, _, err := client.Exchange(message, s.Addr)
	if err != nil || response.Rcode != mdns.RcodeSuccess {
		t.Fatalf("update zone %s: %v, %v", zone, err, response)
	}
}

// ListRecords returns all records of a zone in zone file format, sorted. It leaves out SOA and NS records and
// the records of the name server ns.
func (s *Server) ListRecords(t testing.TB, zone string) []string {
	t.Helper()

	message := new(mdns.Msg)
	message.SetAxfr(mdns.Fqdn(zone))
	message.SetTsig(adminKey, mdns.HmacSHA256, 300, time.Now().Unix())

	transfer := &mdns.Transfer{TsigSecret: map[string]string{adminKey: s.admin}}

	envelopes, err := transfer.In(message, s.Addr)
	if err != nil {
		t.Fatalf("transfer zone %s: %v", zone, err)
	}

	values := []string{}

	for response := range envelopes {
		if response.Error != nil {
			t.Fatalf("transfer zone %s: %v", zone, response.Error)
		}

		for _, rr := range response.RR {
			kind := rr.Header().Rrtype
			if kind != mdns.TypeSOA && kind != mdns.TypeNS && rr.Header().Name != "ns."+mdns.Fqdn(zone) {
				values = append(values, strings.ReplaceAll(rr.String(), "\t", " "))
			}
		}
	}

	slices.Sort(values)

	return values
}

func generateKey(t testing.TB) string {
	t.Helper()

	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		t.Fatal(err)
	}

	return base64.StdEncoding.EncodeToString(raw)
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()

	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
