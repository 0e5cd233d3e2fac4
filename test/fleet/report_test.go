// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// TestReportsNeedTheMachinesToken checks that a machine's report is accepted only with the machine's own token,
// and only for its claim.
func TestReportsNeedTheMachinesToken(t *testing.T) { //nolint:tparallel // the checks after the subtests need their results
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	claim, other := f.NewClaim("reports"), f.NewClaim("other")
	createAndStart(f, f.NewTemplate(), claim, other)
	f.EventuallyReady(claim)

	key := []byte(strings.Repeat("k", 32))
	token := func(c *v1alpha1.MachineClaim) string {
		return "Bearer " + vmspec.ReportToken(key, c.Namespace, c.Name, c.UID)
	}
	earlier := claim.DeepCopy()
	earlier.UID = "00000000-0000-4000-8000-00000000dead"

	good := `{"phase":"Running","message":"job build","time":"2026-01-01T00:00:00Z"}`
	cases := map[string]struct {
		claim *v1alpha1.MachineClaim
		token string
		body  string
		want  int
	}{
		"own token":                                {claim, token(claim), good, http.StatusNoContent},
		"no token":                                 {claim, "", good, http.StatusUnauthorized},
		"token of another machine":                 {claim, token(other), good, http.StatusUnauthorized},
		"token without the bearer scheme":          {claim, strings.TrimPrefix(token(claim), "Bearer "), good, http.StatusUnauthorized},
		"token of an earlier claim with this name": {earlier, token(earlier), good, http.StatusGone},
		"not JSON":                                 {claim, token(claim), "phase=Running", http.StatusBadRequest},
		"without a phase":                          {claim, token(claim), `{"message":"x"}`, http.StatusBadRequest},
		"too large":                                {claim, token(claim), `{"phase":"Running","message":"` + strings.Repeat("x", 9000) + `"}`, http.StatusRequestEntityTooLarge},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				f.Front.URL+vmspec.ReportPath(tc.claim), bytes.NewBufferString(tc.body))
			if err != nil {
				t.Fatal(err)
			}

			request.Header.Set("Authorization", tc.token)

			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}

			_ = response.Body.Close()

			if response.StatusCode != tc.want {
				t.Errorf("status %d, want %d", response.StatusCode, tc.want)
			}
		})
	}

	f.EventuallyCondition(claim, "Ready", metav1.ConditionTrue, "")

	// The operator writes a report together with the next change, or after some seconds.
	f.Eventually("the report being written", func() (bool, string) {
		if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return false, err.Error()
		}

		info := claim.Status.BootstrapInfo

		return info.GuestPhase == "Running" && info.ReportedAt != nil, fmt.Sprintf("%+v", info)
	})

	deleteObject(f, claim)
	deleteObject(f, other)
	f.EventuallyClean()
}
