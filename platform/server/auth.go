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
	// leeway for clocks that do not agree.
	leeway = time.Minute
	// anonymous is the name of callers without tokens.
	anonymous = "anonymous"
	// authorization is the header that has tokens where nothing else is said.
	authorization = "Authorization"
	// maxCaller bounds what is kept as created_by.
	maxCaller = 256
)

// issuer is one whose tokens are taken.
type issuer struct {
	platform.Issuer

	keys *keySet
}

// CheckIssuers says what is wrong with the issuers of a configuration.
func CheckIssuers(configs []platform.Issuer) error {
	var wrong mistakes

	seen := map[string]bool{}

	for i, one := range configs {
		at := fmt.Sprintf("configs[%d]: ", i)

		wrong.when(one.IssuerURL == "", at+"issuer_url: name the issuer: anybody may have such keys")
		wrong.when(one.IssuerURL != "" && seen[one.IssuerURL], at+"issuer_url: it is there twice")
		wrong.when((one.JWKCertURL == "") == (one.JWKCertFile == ""), at+"set jwk_cert_url or jwk_cert_file, one of them")
		wrong.when(one.JWKCertCAFile != "" && one.JWKCertURL == "", at+"jwk_cert_ca_file goes with jwk_cert_url")

		seen[one.IssuerURL] = true
	}

	return errors.Join(wrong...)
}

func (s *Server) loadIssuers() error {
	if err := CheckIssuers(s.options.Issuers); err != nil {
		return fmt.Errorf("server.jwt: %w", err)
	}

	for _, config := range s.options.Issuers {
		config.Header = cmp.Or(config.Header, authorization)
		config.IdentityClaim = cmp.Or(config.IdentityClaim, "sub")

		keys, err := newKeySet(config, s.clock, s.options.Calls)
		if err != nil {
			return fmt.Errorf("server.jwt: issuer %s: %w", config.IssuerURL, err)
		}

		s.issuers = append(s.issuers, issuer{config, keys})
	}

	return nil
}

// callerOf checks the token of a request. Without issuers everybody may come in, and
// nobody has a name.
func (s *Server) callerOf(r *http.Request) (caller, error) {
	if len(s.issuers) == 0 {
		return caller{name: anonymous, all: true}, nil
	}

	// The first issuer's header that is there has the token: a second one is not looked at.
	for _, one := range s.issuers {
		if token := tokenIn(r, one.Header); token != "" {
			return s.verify(r, one.Header, token)
		}
	}

	var names []string
	for _, one := range s.issuers {
		names = append(names, one.IssuerURL)
	}

	return caller{}, problem(CodeUnknown, "send Authorization: Bearer with a token of %s", strings.Join(names, " or "))
}

// tokenIn is what a header has, after the word Bearer, which Authorization needs.
func tokenIn(r *http.Request, header string) string {
	value := strings.TrimSpace(r.Header.Get(header))

	scheme, token, more := strings.Cut(value, " ")
	if more && strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(token)
	}

	if strings.EqualFold(header, authorization) {
		return ""
	}

	return value
}

// algorithms are those with a key pair: with a shared key whoever checks tokens could make
// them.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
		jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
}

// verify gives the caller that a token of a header names. Nothing of the token is told back.
func (s *Server) verify(r *http.Request, header, raw string) (caller, error) {
	bad := func(why string) (caller, error) { return caller{}, problem(CodeNotTrusted, "%s", why) }

	token, err := jwt.ParseSigned(raw, algorithms())
	if err != nil || len(token.Headers) != 1 {
		return bad("the token is not a signed JWT with an asymmetric algorithm")
	}

	from, known := s.issuerOf(header, token)
	if !known {
		return bad("the token is of another issuer")
	}

	keys, err := from.keys.find(r.Context(), token.Headers[0].KeyID)
	if err != nil {
		return caller{}, &Error{Code: CodeKeysNotThere, Detail: "the keys of the issuer are not there", Cause: err}
	}

	var standard jwt.Claims

	all := map[string]any{}

	if !slices.ContainsFunc(keys, func(key jose.JSONWebKey) bool { return token.Claims(key.Key, &standard, &all) == nil }) {
		return bad("the token is not signed with a key of the issuer")
	}

	expected := jwt.Expected{Issuer: from.IssuerURL, Time: s.clock.Now()}
	if from.Audience != "" {
		expected.AnyAudience = jwt.Audience{from.Audience}
	}

	switch err := standard.ValidateWithLeeway(expected, leeway); {
	case errors.Is(err, jwt.ErrExpired):
		return bad("the token has expired")
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return bad("the token is of another issuer")
	case errors.Is(err, jwt.ErrInvalidAudience):
		return bad("the token is for another audience")
	case err != nil:
		return bad("the token is not valid yet")
	case standard.Expiry == nil:
		return bad("the token does not expire")
	}

	name, _ := all[from.IdentityClaim].(string)
	if name == "" || len(name) > maxCaller {
		return bad(fmt.Sprintf("the token has no claim %s with a name", from.IdentityClaim))
	}

	return s.rolesOf(from.IssuerURL, name, all), nil
}

// issuerOf is the issuer that a token says it is of. That is not true yet: it says whose
// keys have to have signed it.
func (s *Server) issuerOf(header string, token *jwt.JSONWebToken) (issuer, bool) {
	var said jwt.Claims
	if token.UnsafeClaimsWithoutVerification(&said) != nil {
		return issuer{}, false
	}

	for _, one := range s.issuers {
		if one.IssuerURL == said.Issuer && strings.EqualFold(one.Header, header) {
			return one, true
		}
	}

	return issuer{}, false
}
