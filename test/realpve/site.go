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

// Site is a Proxmox VE.
type Site struct {
	// Template is small, SlowTemplate takes a while to be cloned in full, TPMTemplate has had
	// a TPM. The latter two are 0 where there are none.
	Template, SlowTemplate, TPMTemplate int

	box *box
	// discarded: the box goes with its test, and all that is on it.
	discarded bool
	account   Account
	root      *gopve.Client

	endpoint             string
	tls                  *tls.Config
	storage, iso, bridge string
	first                int

	parts atomic.Int64
	// tpms are those of templates, by path.
	tpms sync.Map
	// allMarks are those of all parts (Part.marks).
	allMarks sync.Map
}

//nolint:gochecknoglobals // one for all tests of a program
var site = sync.OnceValues(func() (*Site, error) { return connect(context.Background()) })

// Get gives the site, which is brought up at the first call. The test is skipped where
// there is none.
func Get(t testing.TB) *Site {
	t.Helper()

	s, err := site()
	skipOrFail(t, err)

	return s
}

// Run runs a package's tests, and then takes down what was brought up for them. It fails
// where something of the tests is left on the site.
func Run(m *testing.M) int {
	code := m.Run()

	// Without a test that asked for it there is nothing to take down.
	if !asked.Load() {
		return code
	}

	s, err := site()
	if err != nil {
		return code
	}

	if err := s.Close(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "left on Proxmox VE after the tests:", err)

		return max(code, 1)
	}

	return code
}

// asked says that a test has asked for the site.
var asked atomic.Bool //nolint:gochecknoglobals // see site

func connect(ctx context.Context) (*Site, error) {
	asked.Store(true)

	if os.Getenv("PVE_ENDPOINT") != "" {
		s, err := named()
		if err != nil {
			return nil, err
		}

		err = s.clean(ctx)

		return s, err
	}

	b, err := bringUp(ctx, os.Getenv("REALPVE_DIR"))
	if err != nil {
		return nil, err
	}

	return boxed(ctx, b)
}

// Open gives a site for a program that is no test: the one that the environment names, or a box
// of the kit's without templates, which Close ends.
func Open(ctx context.Context) (*Site, error) {
	if os.Getenv("PVE_ENDPOINT") != "" {
		return connect(ctx)
	}

	b, err := bringUp(ctx, os.Getenv("REALPVE_DIR"))
	if err != nil {
		return nil, err
	}

	s, err := bare(ctx, b)
	if err != nil {
		return nil, errors.Join(err, b.remove())
	}

	return s, nil
}

// Close says what is left on the site, and ends it if the kit runs it.
func (s *Site) Close(ctx context.Context) error {
	err := s.clean(ctx)
	if s.box != nil {
		err = errors.Join(err, s.box.remove())
	}

	return err
}

// boxed makes a site of a box, with the templates of the tests.
func boxed(ctx context.Context, b *box) (*Site, error) {
	s, err := bare(ctx, b)
	if err == nil {
		err = s.makeTemplates(ctx)
	}

	if err != nil {
		return nil, errors.Join(err, b.remove())
	}

	return s, nil
}

// bare makes a site of a box, with storages alone.
func bare(ctx context.Context, b *box) (*Site, error) {
	s := &Site{box: b, storage: guideStorage, iso: guideISO, bridge: guideBridge, first: firstID}

	err := s.reach(b.env["REALPVE_ENDPOINT"], b.env["REALPVE_CA"], b.env["REALPVE_TOKEN_ID"], b.env["REALPVE_TOKEN_SECRET"])
	if err == nil {
		if err = s.clean(ctx); err != nil {
			err = fmt.Errorf("%w: run %s reset %s", err, b.program, b.dir)
		}
	}

	if err == nil {
		err = b.storages(ctx)
	}

	return s, err
}

// named gives the site that the environment names.
func named() (*Site, error) {
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
		storage: get("PVE_STORAGE"), iso: get("PVE_ISO_STORAGE"), bridge: get("PVE_BRIDGE"),
		first: cmp.Or(number(os.Getenv("PVE_VMID")), firstID),
		account: Account{Pool: os.Getenv("PVE_POOL"), Credentials: hypervisor.Credentials{
			TokenID: get("PVE_TOKEN_ID"), TokenSecret: get("PVE_TOKEN_SECRET"),
		}},
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

// templates are the ids of those there are.
func (s *Site) templates() []int {
	out := []int{s.Template}

	for _, id := range []int{s.SlowTemplate, s.TPMTemplate} {
		if id != 0 {
			out = append(out, id)
		}
	}

	return out
}

// Boxed says that the kit runs the site: its files can be looked at.
func (s *Site) Boxed() bool { return s.box != nil }
