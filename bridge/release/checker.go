// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/credentials"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// callTimeout bounds one request. checkTimeout bounds one check with all its requests.
	callTimeout  = 10 * time.Second
	checkTimeout = 30 * time.Second
	// maxCachedResults bounds the number of cached results.
	maxCachedResults = 1024
)

// Checker checks images in registries. It is safe for concurrent use.
type Checker struct {
	client *http.Client
	cache  *lru.Cache
	flight singleflight.Group
}

// New returns a checker that sends its requests through the transport. The transport must trust the
// certificate authorities of private registries.
func New(transport http.RoundTripper, clk clock.Clock) *Checker {
	isIdempotent := func(r *http.Request) bool { return r.Method == http.MethodHead || r.Method == http.MethodGet }

	return &Checker{
		client: &http.Client{
			Transport: retry.NewTransport(bounds.LimitBodies(transport), clk, isIdempotent), Timeout: callTimeout,
		},
		cache: lru.New(maxCachedResults),
	}
}

// cacheKey is the key of a cached result.
type cacheKey struct{ image, secret string }

// Check checks that the image exists and that the logins of a Secret may read it. secretVersion identifies
// the content of the Secret. A success is cached for an image and a secretVersion. Errors have a class and a
// reason of ReleaseImageValid: ImageNotFound, ImageUnauthorized (both Permanent) or RegistryUnreachable
// (Transient).
func (c *Checker) Check(ctx context.Context, image string, logins credentials.DockerConfig, secretVersion string) error {
	ref, err := Parse(image)
	if err != nil {
		return errclass.Wrap(errclass.Permanent, v1alpha1.ReasonImageNotFound, err)
	}

	key := cacheKey{image, secretVersion}
	if _, found := c.cache.Get(key); found {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()

	results := c.flight.DoChan(image+"\x00"+secretVersion, func() (any, error) {
		// The first caller may be cancelled while other callers still wait for the result.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()

		return nil, c.checkManifest(ctx, image, ref, logins)
	})

	select {
	case result := <-results:
		if result.Err == nil {
			c.cache.Add(key, true)
		}

		return result.Err
	case <-ctx.Done():
		return newUnreachableError(ref, ctx.Err())
	}
}

// checkManifest returns nil if the registry has the image. It first sends a request without credentials,
// because a public image may need none. If the registry responds with 401, checkManifest sends the request
// again with the authorization that the registry requests.
func (c *Checker) checkManifest(ctx context.Context, image string, ref Reference, logins credentials.DockerConfig) error {
	url := "https://" + ref.Host() + "/v2/" + ref.Repository + "/manifests/" + ref.ManifestReference()
	login, hasLogin := logins.LoginFor(ref.Registry + "/" + ref.Repository)

	status, header, err := c.headManifest(ctx, url, "")
	if err != nil {
		return newUnreachableError(ref, err)
	}

	if status == http.StatusUnauthorized {
		authorization, err := c.authorize(ctx, header, ref, login, hasLogin)
		if err != nil {
			return err
		}

		if status, _, err = c.headManifest(ctx, url, authorization); err != nil {
			return newUnreachableError(ref, err)
		}
	}

	switch status {
	case http.StatusOK:
		return nil
	case http.StatusNotFound:
		return errclass.New(errclass.Permanent, v1alpha1.ReasonImageNotFound,
			"image %s does not exist in its registry: set ocpReleaseImage to an image that exists", image)
	case http.StatusUnauthorized, http.StatusForbidden:
		return newUnauthorizedError(ref, hasLogin)
	default:
		return newUnreachableError(ref, fmt.Errorf("it responded with status %d", status)) //nolint:err113 // wrapped below
	}
}

// headManifest sends a HEAD request for a manifest. It accepts an index of several architectures or one
// manifest, each in the OCI or the Docker format.
func (c *Checker) headManifest(ctx context.Context, url, authorization string) (httpStatus int, header http.Header, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, url, http.NoBody)
	if err != nil {
		return 0, nil, fmt.Errorf("create request: %w", err)
	}

	for _, kind := range []string{
		"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json",
		"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json",
	} {
		request.Header.Add("Accept", kind)
	}

	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}

	response, err := c.client.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("call registry: %w", err)
	}

	_ = response.Body.Close()

	return response.StatusCode, response.Header, nil
}

func newUnreachableError(ref Reference, err error) error {
	return errclass.New(errclass.Transient, v1alpha1.ReasonRegistryUnreachable,
		"check image at registry %s: %w", ref.Registry, err)
}

// withoutLogin is the value of hasLogin for a request without credentials.
const withoutLogin = false

func newUnauthorizedError(ref Reference, hasLogin bool) error {
	if !hasLogin {
		return errclass.New(errclass.Permanent, v1alpha1.ReasonImageUnauthorized,
			"the pull secret has no login for %s/%s, but the registry requires one: add it to the pull secret",
			ref.Registry, ref.Repository)
	}

	return errclass.New(errclass.Permanent, v1alpha1.ReasonImageUnauthorized,
		"registry %s does not allow the pull secret's login to read %s: add a login that may read it to the pull secret, "+
			"and check that the image exists",
		ref.Registry, ref.Repository)
}
