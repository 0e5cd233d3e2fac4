// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// recorder is a test that only notes what it is told.
type recorder struct {
	testing.TB

	errors  []string
	cleanup []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanup = append(r.cleanup, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// TestViolation: a call the simulator does not know fails the test.
func TestViolation(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/api2/json/version":       "",
		"/api2/json/cluster/nope":  "violation: unknown call: GET /cluster/nope",
		"/api2/extjs/cluster/nope": "violation: no such file: GET /api2/extjs/cluster/nope",
	} {
		r := &recorder{TB: t}
		s := pvetest.New(r, pve.DefaultModel())
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "PVEAPIToken="+pve.DefaultTokenID+"="+pve.DefaultSecret)
		res, err := s.HTTPClient().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		for _, f := range r.cleanup {
			f()
		}
		if got := strings.Join(r.errors, "\n"); !strings.HasSuffix(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
