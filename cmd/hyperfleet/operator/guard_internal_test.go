// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// reads gives the status that a token gets.
func reads(h http.Handler, header string) int {
	request := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	if header != "" {
		request.Header.Set("Authorization", header)
	}

	out := httptest.NewRecorder()
	h.ServeHTTP(out, request)

	return out.Code
}

func secrets() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "metrics") })
}

// guards has the API server say who reads metrics: an account with the role that ships, one
// without, and nobody.
func guards(t *testing.T) {
	t.Helper()

	env.Apply(t, "../../../deploy/monitoring/reader.yaml")

	reader := env.ServiceAccount(t, "monitoring", "prometheus-k8s")
	other := env.ServiceAccount(t, "monitoring", "other")

	filter, err := metricsOptions(config.Metrics{Secure: true}, env.Record(kube.EveryArea, env.Config)).FilterProvider(nil, nil)
	if err != nil {
		t.Fatal(err)
	}

	h, err := filter(logr.Discard(), secrets())
	if err != nil {
		t.Fatal(err)
	}

	token := func(c *rest.Config) string { return "Bearer " + c.BearerToken }
	for deadline := time.Now().Add(time.Minute); reads(h, token(reader)) != http.StatusOK && time.Now().Before(deadline); {
		// Roles count a moment after they were made; a verdict is kept for longer than that.
		if h, err = filter(logr.Discard(), secrets()); err != nil {
			t.Fatal(err)
		}

		time.Sleep(20 * time.Millisecond)
	}

	for name, tt := range map[string]struct {
		header string
		want   int
	}{
		"reader":       {token(reader), http.StatusOK},
		"reader again": {token(reader), http.StatusOK},
		"other":        {token(other), http.StatusForbidden},
		"nobody":       {"", http.StatusUnauthorized},
		"no token":     {"Bearer x", http.StatusUnauthorized},
		"another way":  {"Basic " + reader.BearerToken, http.StatusUnauthorized},
	} {
		if got := reads(h, tt.header); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// reviewer is an API server that knows tokens that begin with good, of which one may read /metrics. It counts the
// tokens that it is asked about, and fails while it is down.
func reviewer(t *testing.T, asked *int, down *bool) kubernetes.Interface {
	t.Helper()

	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var (
			token  authenticationv1.TokenReview
			access authorizationv1.SubjectAccessReview
		)

		out, review := any(&access), func() {
			wants := access.Spec.NonResourceAttributes
			access.Status.Allowed = wants.Verb == "get" && wants.Path == "/metrics" && access.Spec.User == "good"
		}

		if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
			*asked++

			if *down {
				http.Error(w, "down", http.StatusInternalServerError)

				return
			}

			out, review = &token, func() {
				token.Status.Authenticated = strings.HasPrefix(token.Spec.Token, "good")
				token.Status.User.Username = token.Spec.Token
			}
		}

		if err := json.NewDecoder(r.Body).Decode(out); err != nil {
			t.Error(err)
		}

		review()
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_ = json.NewEncoder(w).Encode(out)
	}))
	t.Cleanup(api.Close)

	reviews, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}})
	if err != nil {
		t.Fatal(err)
	}

	return reviews
}

// An answer is gone by for a minute, a failure not at all, and what callers can make of it
// is bounded.
func TestGuardKeepsVerdicts(t *testing.T) {
	t.Parallel()

	var (
		asked int
		down  bool
		now   = testclock.NewFakeClock(time.Now())
	)

	g := newGuard(reviewer(t, &asked, &down), now)
	h := g.wrap(logr.Discard(), secrets())

	for i, tt := range []struct {
		header      string
		down        bool
		passes      time.Duration
		want, asked int
	}{
		{"Bearer good", false, 0, http.StatusOK, 1},
		{"Bearer good", true, 0, http.StatusOK, 1},
		{"Bearer bad", false, 0, http.StatusUnauthorized, 2},
		{"Bearer bad", false, 0, http.StatusUnauthorized, 2},
		{"Bearer good", true, verdictLasts, http.StatusServiceUnavailable, 3},
		{"Bearer good", false, 0, http.StatusOK, 4},
		{"Bearer " + strings.Repeat("x", maxToken+1), false, 0, http.StatusUnauthorized, 4},
		{"Bearer ", false, 0, http.StatusUnauthorized, 4},
		{"Bearer good for others", false, 0, http.StatusForbidden, 5},
	} {
		down = tt.down
		now.Step(tt.passes)

		if got := reads(h, tt.header); got != tt.want || asked != tt.asked {
			t.Errorf("%d: status %d after %d questions, want %d after %d", i, got, asked, tt.want, tt.asked)
		}
	}

	for i := range 3 * maxVerdicts {
		reads(h, fmt.Sprintf("Bearer bad%d", i))
	}

	if len(g.known) > maxVerdicts {
		t.Errorf("%d verdicts are kept", len(g.known))
	}

	for range maxReviews {
		g.asking <- struct{}{}
	}

	if got := reads(h, "Bearer bad new"); got != http.StatusServiceUnavailable {
		t.Errorf("one question too many: %d", got)
	}
}
