// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

//+kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
//+kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

const (
	// verdictTTL is the time for which a decision of the API server is cached.
	verdictTTL = time.Minute
	// maxVerdicts limits the cached decisions, and maxReviews the concurrent reviews, so that unauthenticated
	// callers cannot exhaust memory or overload the API server.
	maxVerdicts   = 256
	maxReviews    = 4
	reviewTimeout = 10 * time.Second
	maxToken      = 16 << 10
)

// guard authenticates and authorizes requests for metrics and for shells of machines. The API server has to recognize
// the bearer token, and its account needs the permission: for metrics, the verb `get` on the path as a non-resource URL.
// guard does the same as controller-runtime's WithAuthenticationAndAuthorization, but does not need k8s.io/apiserver
// (docs/adr/0041).
type guard struct {
	reviews     kubernetes.Interface
	reviewSlots chan struct{}
	// verdicts are the HTTP statuses for callers. Status 200 permits the request.
	verdicts *cache.LRUExpireCache
}

func newGuard(reviews kubernetes.Interface, clk clock.PassiveClock) *guard {
	return &guard{
		reviews: reviews, reviewSlots: make(chan struct{}, maxReviews), verdicts: cache.NewLRUExpireCacheWithClock(maxVerdicts, clk),
	}
}

// metricsOptions returns the options of the metrics server. kube must not be guarded by the leader's Lease,
// because every replica serves metrics.
func metricsOptions(cfg config.Metrics, kube *rest.Config) metricsserver.Options {
	out := metricsserver.Options{BindAddress: cfg.BindAddress, SecureServing: cfg.Secure}
	if !cfg.Secure {
		return out
	}

	out.FilterProvider = func(*rest.Config, *http.Client) (metricsserver.Filter, error) {
		reviews, err := kubernetes.NewForConfig(kube)
		if err != nil {
			return nil, fmt.Errorf("create client for token reviews: %w", err)
		}

		g := newGuard(reviews, clock.RealClock{})

		return func(log logr.Logger, next http.Handler) (http.Handler, error) { return g.wrap(log, next), nil }, nil
	}

	return out
}

func (g *guard) wrap(log logr.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, err := g.authorize(r)
		if err != nil {
			log.Error(err, "authorize request for metrics")
		}

		if status != http.StatusOK {
			http.Error(w, http.StatusText(status), status)

			return
		}

		next.ServeHTTP(w, r)
	})
}

// authorize returns the HTTP status for a request. If it returns an error, the API server made no decision,
// and the status denies the request. It also returns status 503 if maxReviews reviews are in progress.
func (g *guard) authorize(r *http.Request) (int, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken {
		return http.StatusUnauthorized, nil
	}

	key := sha256.Sum256([]byte(r.Method + "\x00" + r.URL.Path + "\x00" + token))
	if cached, found := g.verdicts.Get(key); found {
		if status, ok := cached.(int); ok {
			return status, nil
		}
	}

	select {
	case g.reviewSlots <- struct{}{}:
		defer func() { <-g.reviewSlots }()
	default:
		return http.StatusServiceUnavailable, nil
	}

	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()

	_, status, err := g.review(ctx, token, authorizationv1.SubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: strings.ToLower(r.Method), Path: r.URL.Path},
	})
	if err != nil {
		return http.StatusServiceUnavailable, err
	}

	g.verdicts.Add(key, status, verdictTTL)

	return status, nil
}

// authorizeShell authorizes the use of a machine's shell or console, with the permission for the verb `get` on the
// subresource shell of its claim. It caches nothing. It returns the name of the account, and is a shell.Authorizer.
func (g *guard) authorizeShell(
	ctx context.Context, token, namespace, claim string,
) (account string, httpStatus int, err error) {
	if token == "" || len(token) > maxToken {
		return "", http.StatusUnauthorized, nil
	}

	select {
	case g.reviewSlots <- struct{}{}:
		defer func() { <-g.reviewSlots }()
	default:
		return "", http.StatusServiceUnavailable, nil
	}

	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()

	return g.review(ctx, token, authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Name: claim, Verb: "get",
			Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: "machineclaims", Subresource: "shell",
		},
	})
}

// review asks the API server whether the token is valid, and whether its account has the permission in access. It
// returns the name of the account, and status 401 for an invalid token, 403 without the permission, and 200 otherwise.
func (g *guard) review(
	ctx context.Context, token string, access authorizationv1.SubjectAccessReviewSpec,
) (account string, status int, err error) {
	tokenReview, err := g.reviews.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", 0, fmt.Errorf("create TokenReview: %w", err)
	}

	if !tokenReview.Status.Authenticated {
		return "", http.StatusUnauthorized, nil
	}

	user := tokenReview.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))

	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}

	access.User, access.UID, access.Groups, access.Extra = user.Username, user.UID, user.Groups, extra

	accessReview, err := g.reviews.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: access}, metav1.CreateOptions{})
	if err != nil {
		return "", 0, fmt.Errorf("create SubjectAccessReview for %s: %w", user.Username, err)
	}

	if !accessReview.Status.Allowed || accessReview.Status.Denied {
		return user.Username, http.StatusForbidden, nil
	}

	return user.Username, http.StatusOK, nil
}
