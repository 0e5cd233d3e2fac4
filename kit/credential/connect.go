// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// callTimeout is the timeout of one call to the cluster.
const callTimeout = 10 * time.Second

// Kinds are the kinds that a client uses. The client needs no discovery for them.
type Kinds struct {
	// AddToScheme are functions that add the kinds to the client's scheme.
	AddToScheme []func(*runtime.Scheme) error
	// Scopes says for each kind whether it is namespaced.
	Scopes map[schema.GroupVersionKind]meta.RESTScope
}

// Connect returns a client for the cluster of a kubeconfig. Each call has a timeout and a limited
// response size, is made once, and follows no redirects. Connect rejects the same kubeconfigs as
// RESTConfigWithoutProxy. The client has connections of its own, which closeIdle closes.
func Connect(data []byte, kinds Kinds) (c client.Client, closeIdle func(), err error) {
	config, err := RESTConfigWithoutProxy(data)
	if err != nil {
		return nil, nil, err
	}

	// A reconcile makes few calls and each has a timeout, so client-side rate limiting is not needed.
	config.QPS = -1

	wrapped, err := rest.HTTPWrappersForConfig(config, withoutRetries(bounds.LimitBodies(config.Transport)))
	if err != nil {
		return nil, nil, errors.New("read kubeconfig: it has invalid credentials")
	}

	scheme, mapper := runtime.NewScheme(), meta.NewDefaultRESTMapper(nil)

	for _, add := range kinds.AddToScheme {
		if err := add(scheme); err != nil {
			return nil, nil, fmt.Errorf("add kinds: %w", err)
		}
	}

	for kind, scope := range kinds.Scopes {
		mapper.Add(kind, scope)
	}

	c, err = client.New(config, client.Options{
		Scheme: scheme, Mapper: mapper, HTTPClient: &http.Client{
			Transport: wrapped, Timeout: callTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("create client: %w", err)
	}

	return c, (&http.Client{Transport: config.Transport}).CloseIdleConnections, nil
}

// withoutRetries removes the Retry-After header from responses, so that client-go does not retry.
// For example, the API server sends the header for an eviction whose PodDisruptionBudget has not
// been processed by its controller. client-go would retry until the timeout of the call, and the
// cause would be lost.
func withoutRetries(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if response != nil {
			response.Header.Del("Retry-After")
		}

		return response, err
	})
}

// RedactError returns an error of a client from Connect without the text of the server's response.
// A tenant chooses the server and can read the conditions that report the error, so the text must
// not reach the conditions. Without this, the tenant could read responses of servers that only the
// operator can reach.
func RedactError(err error) error {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return fmt.Errorf("the API server of the Node's cluster returned %d %s", status.ErrStatus.Code,
			http.StatusText(int(status.ErrStatus.Code)))
	}

	// Connection errors contain no response. Errors of decoding a response can quote it, for example
	// its kinds.
	if call, ok := errors.AsType[*url.Error](err); ok {
		return call
	}

	for _, target := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, target) {
			return target
		}
	}

	return errUnreadable
}

var errUnreadable = errors.New("the API server of the Node's cluster sent an invalid response: " +
	"check the server in the kubeconfig")
