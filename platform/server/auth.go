// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	// leeway for clocks that do not agree.
	leeway = time.Minute
	// anonymous is the name of callers without tokens.
	anonymous = "anonymous"
	// maxCaller bounds what is kept as created_by.
	maxCaller = 256
)

// callerOf checks the token of a request. Without a JWT configuration everybody may come
// in, and nobody has a name.
func (s *Server) callerOf(r *http.Request) (caller, error) {
	if s.options.JWT == nil {
		return caller{name: anonymous, all: true}, nil
	}

	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token == "" || !strings.EqualFold(scheme, "bearer") {
		return caller{}, problem(CodeUnknown, "send Authorization: Bearer with a token of %s", s.options.JWT.Issuer)
	}

	return s.verify(r, strings.TrimSpace(token))
}

// algorithms are those with a key pair: with a shared key whoever checks tokens could make
// them.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
		jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
}

// verify gives the caller that a token names. Nothing of the token is told back.
func (s *Server) verify(r *http.Request, raw string) (caller, error) {
	bad := func(why string) (caller, error) { return caller{}, problem(CodeNotTrusted, "%s", why) }

	token, err := jwt.ParseSigned(raw, algorithms())
	if err != nil || len(token.Headers) != 1 {
		return bad("the token is not a signed JWT with an asymmetric algorithm")
	}

	keys, err := s.keys.find(r.Context(), token.Headers[0].KeyID)
	if err != nil {
		return caller{}, &Error{Code: CodeKeysNotThere, Detail: "the keys of the issuer are not there", Cause: err}
	}

	var standard jwt.Claims

	all := map[string]any{}

	if !slices.ContainsFunc(keys, func(key jose.JSONWebKey) bool { return token.Claims(key.Key, &standard, &all) == nil }) {
		return bad("the token is not signed with a key of the issuer")
	}

	expected := jwt.Expected{Issuer: s.options.JWT.Issuer, Time: s.clock.Now()}
	if s.options.JWT.Audience != "" {
		expected.AnyAudience = jwt.Audience{s.options.JWT.Audience}
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

	claim := s.options.JWT.SubjectClaim
	if claim == "" {
		claim = "sub"
	}

	name, _ := all[claim].(string)
	if name == "" || len(name) > maxCaller {
		return bad(fmt.Sprintf("the token has no claim %s with a name", claim))
	}

	return s.rolesOf(name, all), nil
}
