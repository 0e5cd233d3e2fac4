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

	"github.com/hyperfleet/hyperfleet/kit/bounds"

	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/workload"
)

// buildTransport returns the chain of round trippers for calls, from the outside: retries, the
// caller's wrapper (metrics, traces), the budget's observer, and the network transport. The host
// check (restrictHosts) and the authentication wrap this chain. All providers share the network
// transport, so that a closed provider leaves no connections behind.
func (p *provider) buildTransport(config Config, callBudget *budget) http.RoundTripper {
	next := observeResponses(config.networkTransport(), callBudget)
	if config.WrapTransport != nil {
		next = config.WrapTransport(next)
	}

	return retry.NewTransport(next, p.clock, isRepeatable)
}

func (c *Config) networkTransport() http.RoundTripper {
	if c.BaseTransport != nil {
		return c.BaseTransport
	}

	return bounds.SharedTransport()
}

// restrictHosts returns a round tripper that rejects requests to hosts that are not configured,
// because a redirect or a link could lead elsewhere.
func restrictHosts(next http.RoundTripper, targets urls) http.RoundTripper {
	allowed := map[string]bool{}

	for _, text := range []string{targets.api, targets.registrationToken} {
		if parsed, err := url.Parse(text); err == nil {
			allowed[parsed.Scheme+"://"+parsed.Host] = true
		}
	}

	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if !allowed[r.URL.Scheme+"://"+r.URL.Host] {
			if r.Body != nil {
				_ = r.Body.Close()
			}

			return nil, fmt.Errorf("%w: %s", errForeignHost, r.URL.Host)
		}

		return next.RoundTrip(r)
	})
}

func authenticateWithToken(next http.RoundTripper, token string) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)

		return next.RoundTrip(r)
	})
}

// authenticateAsInstallation returns a round tripper that authenticates as an App's installation.
// The installation's tokens are valid for one hour, and the round tripper renews them one minute
// before they expire.
func authenticateAsInstallation(next http.RoundTripper, app *App, api string) (http.RoundTripper, error) {
	apps, err := authenticateAsApp(next, app, api)
	if err != nil {
		return nil, err
	}

	return ghinstallation.NewFromAppsTransport(apps, app.InstallationID), nil
}

// authenticateAsApp returns a round tripper that authenticates as the App itself, which only a few
// calls need.
func authenticateAsApp(next http.RoundTripper, app *App, api string) (*ghinstallation.AppsTransport, error) {
	if err := bounds.CheckPrivateKey(app.PrivateKey); err != nil {
		return nil, workload.NewRejected(ReasonCredentials, "the GitHub App's privateKey is "+err.Error())
	}

	key, err := jwt.ParseRSAPrivateKeyFromPEM(app.PrivateKey)
	if err != nil {
		return nil, workload.NewRejected(ReasonCredentials,
			"the GitHub App's privateKey is not an RSA private key in PEM: download one on the App's settings page")
	}

	apps, err := ghinstallation.NewAppsTransportWithOptions(next, 0,
		ghinstallation.WithSigner(signer{issuer: strings.TrimSpace(app.AppID), key: key}))
	if err != nil {
		return nil, workload.NewRejected(ReasonCredentials, "the GitHub App's credentials are not valid: "+err.Error())
	}

	apps.BaseURL = api

	return apps, nil
}

// signer signs tokens of an App that is identified by its id or its client id. The library only
// supports numeric ids.
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

// observeResponses returns a round tripper that passes responses to the budget. It skips the
// responses to requests for the App's tokens, because GitHub counts those calls against another
// limit.
func observeResponses(next http.RoundTripper, callBudget *budget) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil && !strings.HasSuffix(r.URL.Path, "/access_tokens") {
			callBudget.observe(resp)
		}

		return resp, err
	})
}

// isRepeatable reports whether a request can be retried: GET and DELETE can. A POST cannot, because
// the failed attempt may have created an object.
func isRepeatable(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodDelete
}
