// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

//+kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
//+kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

const (
	// verdictLasts is how long an answer of the API server is gone by.
	verdictLasts = time.Minute
	// maxVerdicts and maxReviews bound what callers who are nobody can make of it.
	maxVerdicts   = 256
	maxReviews    = 4
	reviewTimeout = 10 * time.Second
	maxToken      = 16 << 10
)

// guard lets those read metrics whom the API server knows by their bearer token, and who may
// do so: `get` on the path as a non-resource URL. It is controller-runtime's
// WithAuthenticationAndAuthorization without k8s.io/apiserver (docs/adr/0041).
type guard struct {
	reviews kubernetes.Interface
	clock   clock.PassiveClock
	asking  chan struct{}

	mu    sync.Mutex
	known map[[sha256.Size]byte]verdict
}

// verdict is the status that a caller gets, and until when; 200 is let through.
type verdict struct {
	status int
	until  time.Time
}

func newGuard(reviews kubernetes.Interface, now clock.PassiveClock) *guard {
	return &guard{
		reviews: reviews, clock: now, asking: make(chan struct{}, maxReviews), known: map[[sha256.Size]byte]verdict{},
	}
}

// metricsOptions are those of the metrics server; kube is not fenced: each replica serves.
func metricsOptions(cfg config.Metrics, kube *rest.Config) metricsserver.Options {
	out := metricsserver.Options{BindAddress: cfg.BindAddress, SecureServing: cfg.Secure}
	if !cfg.Secure {
		return out
	}

	out.FilterProvider = func(*rest.Config, *http.Client) (metricsserver.Filter, error) {
		reviews, err := kubernetes.NewForConfig(kube)
		if err != nil {
			return nil, fmt.Errorf("make client for reviews of tokens: %w", err)
		}

		g := newGuard(reviews, clock.RealClock{})

		return func(log logr.Logger, next http.Handler) (http.Handler, error) { return g.wrap(log, next), nil }, nil
	}

	return out
}

func (g *guard) wrap(log logr.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, err := g.ask(r)
		if err != nil {
			log.Error(err, "ask the API server who reads the metrics")
		}

		if status != http.StatusOK {
			http.Error(w, http.StatusText(status), status)

			return
		}

		next.ServeHTTP(w, r)
	})
}

// ask gives the status for a request. With an error nothing is known, and nobody is let in.
func (g *guard) ask(r *http.Request) (int, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken {
		return http.StatusUnauthorized, nil
	}

	key := sha256.Sum256([]byte(r.Method + "\x00" + r.URL.Path + "\x00" + token))
	if status, found := g.recall(key); found {
		return status, nil
	}

	select {
	case g.asking <- struct{}{}:
		defer func() { <-g.asking }()
	default:
		return http.StatusServiceUnavailable, nil
	}

	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()

	status, err := g.review(ctx, token, strings.ToLower(r.Method), r.URL.Path)
	if err != nil {
		return http.StatusServiceUnavailable, err
	}

	g.keep(key, status)

	return status, nil
}

// review asks the API server whose the token is, and what that account may do.
func (g *guard) review(ctx context.Context, token, verb, path string) (int, error) {
	who, err := g.reviews.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("review a token: %w", err)
	}

	if !who.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}

	user := who.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))

	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}

	may, err := g.reviews.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: verb, Path: path},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("review the access of %s: %w", user.Username, err)
	}

	if !may.Status.Allowed || may.Status.Denied {
		return http.StatusForbidden, nil
	}

	return http.StatusOK, nil
}

func (g *guard) recall(key [sha256.Size]byte) (int, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()

	found, ok := g.known[key]

	return found.status, ok && g.clock.Now().Before(found.until)
}

// keep notes a verdict. Where there are too many, all are forgotten: each can be asked for again.
func (g *guard) keep(key [sha256.Size]byte, status int) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if len(g.known) >= maxVerdicts {
		clear(g.known)
	}

	g.known[key] = verdict{status: status, until: g.clock.Now().Add(verdictLasts)}
}
