// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeconfig

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

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// callTimeout bounds one call to the cluster.
const callTimeout = 10 * time.Second

// Kinds are those that a client knows: nothing is asked for them.
type Kinds struct {
	Add   []func(*runtime.Scheme) error
	Known map[schema.GroupVersionKind]meta.RESTScope
}

// Connect makes a client of the cluster that a kubeconfig leads to, for calls that are bounded
// and follow no redirection. A kubeconfig that names a proxy is refused, as Direct does. It has
// connections of its own, which end closes.
func Connect(data []byte, kinds Kinds) (made client.Client, end func(), err error) {
	config, err := Direct(data)
	if err != nil {
		return nil, nil, err
	}

	// A pass makes few calls, and each is bounded: nothing waits for its turn in them.
	config.QPS = -1

	wrapped, err := rest.HTTPWrappersForConfig(config, atOnce(httpbound.Transport(config.Transport)))
	if err != nil {
		return nil, nil, errors.New("its kubeconfig has credentials that can't be used")
	}

	scheme, mapper := runtime.NewScheme(), meta.NewDefaultRESTMapper(nil)

	for _, add := range kinds.Add {
		if err := add(scheme); err != nil {
			return nil, nil, fmt.Errorf("add kinds: %w", err)
		}
	}

	for kind, scope := range kinds.Known {
		mapper.Add(kind, scope)
	}

	made, err = client.New(config, client.Options{
		Scheme: scheme, Mapper: mapper, HTTPClient: &http.Client{
			Transport: wrapped, Timeout: callTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}

	return made, (&http.Client{Transport: config.Transport}).CloseIdleConnections, nil
}

// atOnce has no call repeated. client-go waits and tries again where an answer says when, as that
// of a PodDisruptionBudget does which no controller has looked at yet, until the call's time is
// over: then nobody knew why.
func atOnce(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if answer != nil {
			answer.Header.Del("Retry-After")
		}

		return answer, err
	})
}

// Answered is an error of a client of Connect without the words of the server's answer: a tenant
// names the server, and may read what is told of it.
func Answered(err error) error {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return fmt.Errorf("the API server of the Node's cluster answered %d %s", status.ErrStatus.Code,
			http.StatusText(int(status.ErrStatus.Code)))
	}

	// Errors of the connection are told. Those of reading an answer quote it: its kinds, for one.
	if call, ok := errors.AsType[*url.Error](err); ok {
		return call
	}

	for _, end := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, end) {
			return end
		}
	}

	return errUnreadable
}

var errUnreadable = errors.New("the API server of the Node's cluster answered what can't be read: " +
	"check the server in the kubeconfig")
