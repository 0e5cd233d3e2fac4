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

// VMIDs of the tests. Each Part has its own VMIDs.
const (
	vmidsPerPart     = 50
	vmidsOfTests     = 10_000
	defaultFirstVMID = 810_000
)

// ErrNotConfigured is the error if the environment names no Proxmox VE.
var ErrNotConfigured = errors.New("no Proxmox VE is configured: set PVE_ENDPOINT and the other variables (go doc ./test/realpve)")

// Site is the Proxmox VE that the environment names.
type Site struct {
	// Template is the VMID of a small template. SlowTemplate is the VMID of a template whose full clone takes
	// long, 0 if there is none.
	Template, SlowTemplate int

	// root is the administrator's client. credentials and pool are the operator's.
	adminClient *gopve.Client
	credentials hypervisor.Credentials
	pool        string

	endpoint             string
	tls                  *tls.Config
	storage, iso, bridge string
	firstVMID            int

	parts atomic.Int64
	// allISOPrefixes are the prefixes of ISO names of all parts (Part.isoPrefixes).
	allISOPrefixes sync.Map
}

//nolint:gochecknoglobals // all tests of a program share one site
var (
	// openedSite is the site, nil before the first test has called GetSite.
	openedSite atomic.Pointer[Site]
	openOnce   = sync.OnceValues(func() (*Site, error) {
		s, err := Open(context.Background())
		openedSite.Store(s)

		return s, err
	})
)

// GetSite returns the site. It skips the test if the environment names none.
func GetSite(t testing.TB) *Site {
	t.Helper()

	s, err := openOnce()
	if errors.Is(err, ErrNotConfigured) {
		t.Skip(err)
	}

	if err != nil {
		t.Fatal(err)
	}

	return s
}

// Run runs a package's tests, and returns the exit code. The exit code is not zero if something of the
// tests is left on the site.
func Run(m *testing.M) int {
	code := m.Run()

	s := openedSite.Load()
	if s == nil {
		return code
	}

	if err := s.CheckLeftovers(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "left on Proxmox VE after the tests:", err)

		return max(code, 1)
	}

	return code
}

// Open returns the site. It fails if something of earlier tests is left on the site, or with
// ErrNotConfigured if the environment names no site.
func Open(ctx context.Context) (*Site, error) {
	s, err := readEnvironment()
	if err != nil {
		return nil, err
	}

	if err := s.CheckLeftovers(ctx); err != nil {
		return nil, err
	}

	return s, nil
}

// CheckEnvironment returns an error that names missing environment variables. It does not connect to
// Proxmox VE.
func CheckEnvironment() error {
	_, err := readEnvironment()

	return err
}

// readEnvironment returns the site that the environment names.
func readEnvironment() (*Site, error) {
	if os.Getenv("PVE_ENDPOINT") == "" {
		return nil, ErrNotConfigured
	}

	var missing []string

	get := func(name string) string {
		value := os.Getenv(name)
		if value == "" {
			missing = append(missing, name)
		}

		return value
	}

	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if text != "" && err != nil {
			missing = append(missing, "a VMID instead of "+text)
		}

		return n
	}

	s := &Site{
		Template: number(get("PVE_TEMPLATE")), SlowTemplate: number(os.Getenv("PVE_SLOW_TEMPLATE")),
		credentials: hypervisor.Credentials{TokenID: get("PVE_TOKEN_ID"), TokenSecret: get("PVE_TOKEN_SECRET")},
		pool:        os.Getenv("PVE_POOL"),
		storage:     get("PVE_STORAGE"), iso: get("PVE_ISO_STORAGE"), bridge: get("PVE_BRIDGE"),
		firstVMID: cmp.Or(number(os.Getenv("PVE_VMID")), defaultFirstVMID),
	}
	err := s.createClient(get("PVE_ENDPOINT"), get("PVE_CA"), get("PVE_ADMIN_TOKEN_ID"), get("PVE_ADMIN_TOKEN_SECRET"))

	if len(missing) > 0 {
		return nil, fmt.Errorf("PVE_ENDPOINT is set, but variables are missing: set %s (go doc ./test/realpve)",
			strings.Join(missing, ", "))
	}

	return s, err
}

// createClient creates the administrator's client, and sets the TLS configuration.
func (s *Site) createClient(endpoint, ca, token, secret string) error {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return fmt.Errorf("read PVE_CA: %w", err)
	}

	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("read PVE_CA: file %s contains no certificate", ca)
	}

	s.endpoint = strings.TrimSuffix(endpoint, "/")
	if !strings.HasSuffix(s.endpoint, "/api2/json") {
		s.endpoint += "/api2/json"
	}

	s.tls = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	s.adminClient = gopve.NewClient(s.endpoint, gopve.WithAPIToken(token, secret),
		gopve.WithHTTPClient(&http.Client{Transport: &http.Transport{TLSClientConfig: s.tls.Clone()}}))

	return nil
}

// isTemplate returns true if the id is the VMID of one of the site's templates.
func (s *Site) isTemplate(id int) bool { return id == s.Template || id == s.SlowTemplate }
