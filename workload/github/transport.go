// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"crypto/rsa"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/bradleyfalzon/ghinstallation/v2"
	"github.com/golang-jwt/jwt/v4"

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/inputbound"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/workload"
)

// network gives the chain that a call goes through: guard and credentials, which come
// before it, then retry, the caller's wrapping (metrics, traces), the budget's look at the
// answer, the network. The network's part is a transport that providers share, so that
// they come and go without leaving connections behind.
func (p *provider) network(config Config, spent *budget) http.RoundTripper {
	next := observing(config.network(), spent)
	if config.Transport != nil {
		next = config.Transport(next)
	}

	return retry.Transport(next, p.clock, mayRepeat)
}

func (c *Config) network() http.RoundTripper {
	if c.Network != nil {
		return c.Network
	}

	return httpbound.Shared()
}

// guarding refuses to carry credentials to any host but the configured ones, wherever a
// redirect or a link may point.
func guarding(next http.RoundTripper, where urls) http.RoundTripper {
	allowed := map[string]bool{}

	for _, text := range []string{where.api, where.registrationToken} {
		if parsed, err := url.Parse(text); err == nil {
			allowed[parsed.Scheme+"://"+parsed.Host] = true
		}
	}

	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		if !allowed[r.URL.Scheme+"://"+r.URL.Host] {
			if r.Body != nil {
				_ = r.Body.Close()
			}

			return nil, fmt.Errorf("%w: %s", errForeignHost, r.URL.Host)
		}

		return next.RoundTrip(r)
	})
}

func bearing(next http.RoundTripper, token string) http.RoundTripper {
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)

		return next.RoundTrip(r)
	})
}

// installation authenticates as an App's installation. Its tokens last an hour and are
// renewed a minute before their end.
func installation(next http.RoundTripper, app *App, api string) (http.RoundTripper, error) {
	apps, err := asApp(next, app, api)
	if err != nil {
		return nil, err
	}

	return ghinstallation.NewFromAppsTransport(apps, app.InstallationID), nil
}

// asApp authenticates as the App itself, which only a few calls ask for.
func asApp(next http.RoundTripper, app *App, api string) (*ghinstallation.AppsTransport, error) {
	if err := inputbound.Key(app.PrivateKey); err != nil {
		return nil, workload.Reject(ReasonCredentials, "the GitHub App's privateKey is "+err.Error())
	}

	key, err := jwt.ParseRSAPrivateKeyFromPEM(app.PrivateKey)
	if err != nil {
		return nil, workload.Reject(ReasonCredentials,
			"the GitHub App's privateKey is not an RSA private key in PEM: download one on the App's settings page")
	}

	apps, err := ghinstallation.NewAppsTransportWithOptions(next, 0,
		ghinstallation.WithSigner(signer{issuer: strings.TrimSpace(app.AppID), key: key}))
	if err != nil {
		return nil, workload.Reject(ReasonCredentials, "the GitHub App's credentials cannot be used: "+err.Error())
	}

	apps.BaseURL = api

	return apps, nil
}

// signer signs as an App that is known by its id or its client id; the library knows
// numeric ids only.
type signer struct {
	issuer string
	key    *rsa.PrivateKey
}

// Sign signs the library's claims with the App's own issuer.
func (s signer) Sign(claims jwt.Claims) (string, error) {
	if registered, ok := claims.(*jwt.RegisteredClaims); ok {
		registered.Issuer = s.issuer
	}

	text, err := jwt.NewWithClaims(jwt.SigningMethodRS256, claims).SignedString(s.key)
	if err != nil {
		return "", fmt.Errorf("sign the App's token: %w", err)
	}

	return text, nil
}

// observing tells the budget of every answer, but for those to the App itself: they count
// against another limit than its installation's calls.
func observing(next http.RoundTripper, spent *budget) http.RoundTripper {
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil && !strings.HasSuffix(r.URL.Path, "/access_tokens") {
			spent.observe(resp)
		}

		return resp, err
	})
}

// mayRepeat: reads and deletions. A POST is never repeated: it may have made something.
func mayRepeat(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodDelete
}
