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
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// requestStatus returns the status of a request with the given Authorization header.
func requestStatus(h http.Handler, header string) int {
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

// checkGuard checks with a real API server which accounts can read metrics: one with the role from the manifests, one
// without the role, and unauthenticated callers.
func checkGuard(t *testing.T) {
	t.Helper()

	env.Apply(t, "../../../deploy/monitoring/reader.yaml")

	reader := env.ServiceAccount(t, "monitoring", "prometheus-k8s")
	other := env.ServiceAccount(t, "monitoring", "other")

	filter, err := metricsOptions(config.Metrics{Secure: true}, env.RecordUses(kube.EveryArea, env.Config)).FilterProvider(nil, nil)
	if err != nil {
		t.Fatal(err)
	}

	h, err := filter(logr.Discard(), secrets())
	if err != nil {
		t.Fatal(err)
	}

	token := func(c *rest.Config) string { return "Bearer " + c.BearerToken }
	for deadline := time.Now().Add(time.Minute); requestStatus(h, token(reader)) != http.StatusOK && time.Now().Before(deadline); {
		// New roles take effect after a short time. The guard caches decisions for longer, so a new guard is needed.
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
		if got := requestStatus(h, tt.header); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// checkShellAccess checks with a real API server which accounts can use the shell of a claim's machine.
func checkShellAccess(t *testing.T) {
	t.Helper()

	const namespace = "shells"

	user, other := env.ServiceAccount(t, namespace, "user"), env.ServiceAccount(t, namespace, "other")
	env.Create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "machine-shell"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"hyperfleet.io"}, Resources: []string{"machineclaims/shell"}, Verbs: []string{"get"},
		}},
	})
	env.Create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "machine-shell"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "machine-shell"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "user"}},
	})

	reviews, err := kubernetes.NewForConfig(env.RecordUses(kube.EveryArea, env.Config))
	if err != nil {
		t.Fatal(err)
	}

	g := newGuard(reviews, testclock.NewFakePassiveClock(time.Now()))
	authorize := func(token, namespace string) (string, int) {
		account, status, err := g.authorizeShell(t.Context(), token, namespace, "linux-a")
		if err != nil {
			t.Fatal(err)
		}

		return account, status
	}

	// New roles take effect after a short time.
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, status := authorize(user.BearerToken, namespace); status == http.StatusOK {
			break
		}
	}

	for name, tt := range map[string]struct {
		token, namespace, account string
		want                      int
	}{
		"user":              {user.BearerToken, namespace, "system:serviceaccount:shells:user", http.StatusOK},
		"another namespace": {user.BearerToken, "default", "system:serviceaccount:shells:user", http.StatusForbidden},
		"other":             {other.BearerToken, namespace, "system:serviceaccount:shells:other", http.StatusForbidden},
		"no token":          {"", namespace, "", http.StatusUnauthorized},
		"invalid token":     {"x", namespace, "", http.StatusUnauthorized},
	} {
		if account, got := authorize(tt.token, tt.namespace); got != tt.want || account != tt.account {
			t.Errorf("%s: %d for %q, want %d for %q", name, got, account, tt.want, tt.account)
		}
	}
}

// newReviewer returns a client for an API server that accepts tokens with the prefix "good". Only the token "good" has the
// permission to read /metrics. The server counts token reviews in asked, and fails while down is true.
func newReviewer(t *testing.T, calls *int, down *bool) kubernetes.Interface {
	t.Helper()

	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var (
			token  authenticationv1.TokenReview
			access authorizationv1.SubjectAccessReview
		)

		out, review := any(&access), func() {
			attributes := access.Spec.NonResourceAttributes
			access.Status.Allowed = attributes.Verb == "get" && attributes.Path == "/metrics" && access.Spec.User == "good"
		}

		if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
			*calls++

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

// TestGuardKeepsVerdicts checks that decisions are cached for a minute, that failures are not cached, and that the cache
// and the number of concurrent reviews are limited.
func TestGuardKeepsVerdicts(t *testing.T) {
	t.Parallel()

	var (
		asked int
		down  bool
		now   = testclock.NewFakeClock(time.Now())
	)

	g := newGuard(newReviewer(t, &asked, &down), now)
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
		{"Bearer good", true, verdictTTL + 1, http.StatusServiceUnavailable, 3},
		{"Bearer good", false, 0, http.StatusOK, 4},
		{"Bearer " + strings.Repeat("x", maxToken+1), false, 0, http.StatusUnauthorized, 4},
		{"Bearer ", false, 0, http.StatusUnauthorized, 4},
		{"Bearer good for others", false, 0, http.StatusForbidden, 5},
	} {
		down = tt.down
		now.Step(tt.passes)

		if got := requestStatus(h, tt.header); got != tt.want || asked != tt.asked {
			t.Errorf("%d: status %d after %d questions, want %d after %d", i, got, asked, tt.want, tt.asked)
		}
	}

	for i := range 3 * maxVerdicts {
		requestStatus(h, fmt.Sprintf("Bearer bad%d", i))
	}

	if kept := len(g.verdicts.Keys()); kept > maxVerdicts {
		t.Errorf("%d verdicts are kept", kept)
	}

	for range maxReviews {
		g.reviewSlots <- struct{}{}
	}

	if got := requestStatus(h, "Bearer bad new"); got != http.StatusServiceUnavailable {
		t.Errorf("one question too many: %d", got)
	}
}
