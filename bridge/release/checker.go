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
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// callTimeout bounds one request, checkTimeout one question with all its requests.
	callTimeout  = 10 * time.Second
	checkTimeout = 30 * time.Second
	// remembered is how many answers are kept.
	remembered = 1024
)

// Checker asks registries. It is safe for use by many.
type Checker struct {
	client *http.Client
	known  *lru.Cache
	flight singleflight.Group
}

// New makes a checker on top of a transport, which has the authorities of private registries.
func New(transport http.RoundTripper, clk clock.Clock) *Checker {
	idempotent := func(r *http.Request) bool { return r.Method == http.MethodHead || r.Method == http.MethodGet }

	return &Checker{
		client: &http.Client{Transport: retry.Transport(httpbound.Transport(transport), clk, idempotent), Timeout: callTimeout},
		known:  lru.New(remembered),
	}
}

// question is what an answer is remembered by.
type question struct{ image, secret string }

// Check asks whether an image is there and may be read with the logins of a Secret. The
// version names the Secret's content: another version is another question. Errors are
// classed and have a reason of ReleaseImageValid: ImageNotFound, ImageUnauthorized (both
// Permanent) or RegistryUnreachable (Transient).
func (c *Checker) Check(ctx context.Context, image string, logins credentials.Docker, version string) error {
	ref, err := Parse(image)
	if err != nil {
		return errclass.Wrap(errclass.Permanent, v1alpha1.ReasonImageNotFound, err)
	}

	asked := question{image, version}
	if _, known := c.known.Get(asked); known {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()

	answer := c.flight.DoChan(image+"\x00"+version, func() (any, error) {
		// The first to ask may give up; the others still want to know.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()

		return nil, c.ask(ctx, image, ref, logins)
	})

	select {
	case result := <-answer:
		if result.Err == nil {
			c.known.Add(asked, true)
		}

		return result.Err
	case <-ctx.Done():
		return unreachable(ref, ctx.Err())
	}
}

func (c *Checker) ask(ctx context.Context, image string, ref Reference, logins credentials.Docker) error {
	url := "https://" + ref.Host() + "/v2/" + ref.Repository + "/manifests/" + ref.Manifest()
	login, hasLogin := logins.For(ref.Registry + "/" + ref.Repository)

	status, header, err := c.head(ctx, url, "")
	if err != nil {
		return unreachable(ref, err)
	}

	if status == http.StatusUnauthorized {
		authorization, err := c.authorize(ctx, header, ref, login, hasLogin)
		if err != nil {
			return err
		}

		if status, _, err = c.head(ctx, url, authorization); err != nil {
			return unreachable(ref, err)
		}
	}

	switch status {
	case http.StatusOK:
		return nil
	case http.StatusNotFound:
		return errclass.New(errclass.Permanent, v1alpha1.ReasonImageNotFound,
			"image %s is not in its registry: put one that is there into ocpReleaseImage", image)
	case http.StatusUnauthorized, http.StatusForbidden:
		return unauthorized(ref, hasLogin)
	default:
		return unreachable(ref, fmt.Errorf("it answers with status %d", status)) //nolint:err113 // wrapped below
	}
}

// head asks for a manifest's head. The manifest is a list of several architectures or one
// of either format.
func (c *Checker) head(ctx context.Context, url, authorization string) (int, http.Header, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, url, http.NoBody)
	if err != nil {
		return 0, nil, fmt.Errorf("make request: %w", err)
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

	answer, err := c.client.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("ask registry: %w", err)
	}

	_ = answer.Body.Close()

	return answer.StatusCode, answer.Header, nil
}

func unreachable(ref Reference, err error) error {
	return errclass.New(errclass.Transient, v1alpha1.ReasonRegistryUnreachable,
		"registry %s can't be asked for the image: %w", ref.Registry, err)
}

func unauthorized(ref Reference, hasLogin bool) error {
	if !hasLogin {
		return errclass.New(errclass.Permanent, v1alpha1.ReasonImageUnauthorized,
			"the pull secret has no login for %s/%s, and the registry wants one: add it to the pull secret", ref.Registry, ref.Repository)
	}

	return errclass.New(errclass.Permanent, v1alpha1.ReasonImageUnauthorized,
		"registry %s does not let the pull secret's login read %s: put one that may into the pull secret, "+
			"and see that the image is there",
		ref.Registry, ref.Repository)
}
