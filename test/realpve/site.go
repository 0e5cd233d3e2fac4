// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	gopve "github.com/luthermonson/go-proxmox"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// IDs of machines: each Part has its own.
const (
	idsOfPart  = 50
	idsOfTests = 10_000
	firstID    = 810_000
)

// ErrNone says that the environment names no Proxmox VE.
var ErrNone = errors.New("no Proxmox VE: set PVE_ENDPOINT and what goes with it (go doc ./test/realpve)")

// Site is the Proxmox VE that the environment names.
type Site struct {
	// Template is small, SlowTemplate takes a while to be cloned in full; that is 0 where there
	// is none.
	Template, SlowTemplate int

	// root is the administrator's client, credentials and pool are the operator's.
	root        *gopve.Client
	credentials hypervisor.Credentials
	pool        string

	endpoint             string
	tls                  *tls.Config
	storage, iso, bridge string
	first                int

	parts atomic.Int64
	// allMarks are those of all parts (Part.marks).
	allMarks sync.Map
}

//nolint:gochecknoglobals // one for all tests of a program
var (
	// opened is the site, once a test has asked for it.
	opened atomic.Pointer[Site]
	site   = sync.OnceValues(func() (*Site, error) {
		s, err := Open(context.Background())
		opened.Store(s)

		return s, err
	})
)

// Get gives the site. The test is skipped where there is none.
func Get(t testing.TB) *Site {
	t.Helper()

	s, err := site()
	if errors.Is(err, ErrNone) {
		t.Skip(err)
	}

	if err != nil {
		t.Fatal(err)
	}

	return s
}

// Run runs a package's tests. It fails where something of them is left on the site.
func Run(m *testing.M) int {
	code := m.Run()

	s := opened.Load()
	if s == nil {
		return code
	}

	if err := s.Left(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "left on Proxmox VE after the tests:", err)

		return max(code, 1)
	}

	return code
}

// Open gives the site, on which nothing may be left of tests before; ErrNone where there is
// none.
func Open(ctx context.Context) (*Site, error) {
	s, err := named()
	if err != nil {
		return nil, err
	}

	if err := s.Left(ctx); err != nil {
		return nil, err
	}

	return s, nil
}

// Check says what the environment lacks to name a Proxmox VE, without asking that.
func Check() error {
	_, err := named()

	return err
}

// named gives the site that the environment names.
func named() (*Site, error) {
	if os.Getenv("PVE_ENDPOINT") == "" {
		return nil, ErrNone
	}

	var unset []string

	get := func(name string) string {
		value := os.Getenv(name)
		if value == "" {
			unset = append(unset, name)
		}

		return value
	}

	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if text != "" && err != nil {
			unset = append(unset, "a VMID in place of "+text)
		}

		return n
	}

	s := &Site{
		Template: number(get("PVE_TEMPLATE")), SlowTemplate: number(os.Getenv("PVE_SLOW_TEMPLATE")),
		credentials: hypervisor.Credentials{TokenID: get("PVE_TOKEN_ID"), TokenSecret: get("PVE_TOKEN_SECRET")},
		pool:        os.Getenv("PVE_POOL"),
		storage:     get("PVE_STORAGE"), iso: get("PVE_ISO_STORAGE"), bridge: get("PVE_BRIDGE"),
		first: cmp.Or(number(os.Getenv("PVE_VMID")), firstID),
	}
	err := s.reach(get("PVE_ENDPOINT"), get("PVE_CA"), get("PVE_ADMIN_TOKEN_ID"), get("PVE_ADMIN_TOKEN_SECRET"))

	if len(unset) > 0 {
		return nil, fmt.Errorf("PVE_ENDPOINT is set: set %s too (go doc ./test/realpve)", strings.Join(unset, ", "))
	}

	return s, err
}

// reach makes the administrator's client.
func (s *Site) reach(endpoint, ca, token, secret string) error {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return fmt.Errorf("read the certificate authority: %w", err)
	}

	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("read the certificate authority: no certificate in %s", ca)
	}

	s.endpoint = strings.TrimSuffix(endpoint, "/")
	if !strings.HasSuffix(s.endpoint, "/api2/json") {
		s.endpoint += "/api2/json"
	}

	s.tls = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	s.root = gopve.NewClient(s.endpoint, gopve.WithAPIToken(token, secret),
		gopve.WithHTTPClient(&http.Client{Transport: &http.Transport{TLSClientConfig: s.tls.Clone()}}))

	return nil
}

// isTemplate says whether an id is that of one of its templates.
func (s *Site) isTemplate(id int) bool { return id == s.Template || id == s.SlowTemplate }
