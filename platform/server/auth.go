// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

const (
	// leeway is the tolerated difference between clocks.
	leeway = time.Minute
	// anonymous is the name of callers if the API has no issuers.
	anonymous = "anonymous"
	// authorization is the default header for tokens.
	authorization = "Authorization"
	// defaultIdentityClaim is the claim with the caller's name if identity_claim is empty (RFC 7519, 4.1.2).
	defaultIdentityClaim = "sub"
	// maxCallerLength is the maximum length of a caller's name, which is stored as created_by.
	maxCallerLength = 256
)

type issuer struct {
	platform.Issuer

	keys *keySet
}

// ValidateIssuers returns all problems of the issuers in a configuration.
func ValidateIssuers(configs []platform.Issuer) error {
	var problems configErrors

	seen := map[string]bool{}

	for i, config := range configs {
		path := fmt.Sprintf("configs[%d]: ", i)

		problems.addIf(config.IssuerURL == "", path+"issuer_url: set the issuer, because other issuers may use the same keys")
		problems.addIf(config.IssuerURL != "" && seen[config.IssuerURL], path+"issuer_url: it is listed more than once")
		problems.addIf((config.JWKCertURL == "") == (config.JWKCertFile == ""), path+"set either jwk_cert_url or jwk_cert_file")
		problems.addIf(config.JWKCertCAFile != "" && config.JWKCertURL == "", path+"jwk_cert_ca_file: set jwk_cert_url, too")

		seen[config.IssuerURL] = true
	}

	return errors.Join(problems...)
}

func (s *Server) loadIssuers() error {
	if err := ValidateIssuers(s.options.Issuers); err != nil {
		return fmt.Errorf("server.jwt: %w", err)
	}

	for _, config := range s.options.Issuers {
		config.Header = cmp.Or(config.Header, authorization)
		config.IdentityClaim = cmp.Or(config.IdentityClaim, defaultIdentityClaim)

		keys, err := newKeySet(config, s.clock, s.options.Calls)
		if err != nil {
			return fmt.Errorf("server.jwt: issuer %s: %w", config.IssuerURL, err)
		}

		s.issuers = append(s.issuers, issuer{config, keys})
	}

	return nil
}

// authenticate verifies the token of a request and returns its caller. Without issuers, every
// request is allowed and its caller is anonymous.
func (s *Server) authenticate(r *http.Request) (caller, error) {
	if len(s.issuers) == 0 {
		return caller{name: anonymous, isUnrestricted: true}, nil
	}

	// Only the first token that is found counts, in the order of the issuers' headers.
	for _, candidate := range s.issuers {
		if token := findToken(r, candidate.Header); token != "" {
			return s.verify(r, candidate.Header, token)
		}
	}

	var names []string
	for _, candidate := range s.issuers {
		names = append(names, candidate.IssuerURL)
	}

	return caller{}, newProblem(CodeUnauthenticated, "send the header Authorization: Bearer with a token of %s",
		strings.Join(names, " or "))
}

// findToken returns the token in a header. The word Bearer precedes the token. It is required in
// the header Authorization and optional in other headers.
func findToken(r *http.Request, header string) string {
	value := strings.TrimSpace(r.Header.Get(header))

	scheme, token, hasScheme := strings.Cut(value, " ")
	if hasScheme && strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(token)
	}

	if strings.EqualFold(header, authorization) {
		return ""
	}

	return value
}

// allowedAlgorithms returns the accepted algorithms. All of them are asymmetric, because anyone who
// can verify tokens with a shared key can also create them.
func allowedAlgorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
		jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
}

// verify returns the caller that the token in a header names. Errors never contain any part of the
// token.
func (s *Server) verify(r *http.Request, header, raw string) (caller, error) {
	reject := func(reason string) (caller, error) { return caller{}, newProblem(CodeInvalidToken, "%s", reason) }

	token, err := jwt.ParseSigned(raw, allowedAlgorithms())
	if err != nil || len(token.Headers) != 1 {
		return reject("the token is not a signed JWT with an asymmetric algorithm")
	}

	trusted, isTrusted := s.findIssuer(header, token)
	if !isTrusted {
		return reject("the token is from an issuer that is not trusted")
	}

	keys, err := trusted.keys.find(r.Context(), token.Headers[0].KeyID)
	if err != nil {
		return caller{}, &Error{Code: CodeKeysUnavailable, Detail: "the keys of the issuer are unavailable", Cause: err}
	}

	var standard jwt.Claims

	all := map[string]any{}

	if !slices.ContainsFunc(keys, func(key jose.JSONWebKey) bool { return token.Claims(key.Key, &standard, &all) == nil }) {
		return reject("the token is not signed with a key of the issuer")
	}

	expected := jwt.Expected{Issuer: trusted.IssuerURL, Time: s.clock.Now()}
	if trusted.Audience != "" {
		expected.AnyAudience = jwt.Audience{trusted.Audience}
	}

	switch err := standard.ValidateWithLeeway(expected, leeway); {
	case errors.Is(err, jwt.ErrExpired):
		return reject("the token has expired")
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return reject("the token is from an issuer that is not trusted")
	case errors.Is(err, jwt.ErrInvalidAudience):
		return reject("the token is for another audience")
	case err != nil:
		return reject("the token is not valid yet")
	case standard.Expiry == nil:
		return reject("the token has no expiry")
	}

	name, _ := all[trusted.IdentityClaim].(string)
	if name == "" || len(name) > maxCallerLength {
		return reject("the token has no valid name in claim " + trusted.IdentityClaim)
	}

	return s.newCaller(trusted.IssuerURL, name, all), nil
}

// findIssuer returns the issuer that an unverified token names. It decides with whose keys the
// token is verified.
func (s *Server) findIssuer(header string, token *jwt.JSONWebToken) (issuer, bool) {
	var claims jwt.Claims
	if token.UnsafeClaimsWithoutVerification(&claims) != nil {
		return issuer{}, false
	}

	for _, candidate := range s.issuers {
		if candidate.IssuerURL == claims.Issuer && strings.EqualFold(candidate.Header, header) {
			return candidate, true
		}
	}

	return issuer{}, false
}
