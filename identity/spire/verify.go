// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"

	"github.com/hyperfleet/hyperfleet/identity"
)

const (
	// maxAge of the server's keys: one that was revoked is not believed for longer.
	maxAge = time.Minute
	// minAge of them before somebody who names another key has them fetched again.
	minAge = 5 * time.Second
	// maxToken bounds a JWT-SVID in bytes.
	maxToken = 16 << 10
)

// keys are the server's keys of JWT-SVIDs, for a while.
type keys struct {
	// fetching is held by the one that asks the server; whoever needs no news does not wait.
	fetching sync.Mutex

	mu      sync.Mutex
	bundle  *jwtbundle.Bundle
	fetched time.Time
}

// have gives the keys if they are fresh, and hold the one that is asked for or were fetched
// a moment ago.
func (k *keys) have(key string, now time.Time) *jwtbundle.Bundle {
	k.mu.Lock()
	defer k.mu.Unlock()

	if k.bundle == nil {
		return nil
	}

	age := now.Sub(k.fetched)
	if age < maxAge && (k.bundle.HasJWTAuthority(key) || age < minAge) {
		return k.bundle
	}

	return nil
}

func (k *keys) keep(bundle *jwtbundle.Bundle, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()

	k.bundle, k.fetched = bundle, now
}

// Verify gives the identity that a JWT-SVID proves.
func (r *Registry) Verify(ctx context.Context, token, audience string) (identity.ID, error) {
	if audience == "" || len(token) > maxToken {
		return identity.ID{}, rejected("verify JWT-SVID: it is too long, or no audience was asked for")
	}

	key, err := keyOf(token)
	if err != nil {
		return identity.ID{}, err
	}

	bundle, err := r.jwtBundle(ctx, key)
	if err != nil {
		return identity.ID{}, err
	}

	svid, err := jwtsvid.ParseAndValidate(token, bundle, []string{audience})
	if err != nil {
		return identity.ID{}, rejected("verify JWT-SVID: %w", err)
	}

	id, err := identity.ParsePath(svid.ID.Path())
	if err != nil {
		return identity.ID{}, rejected("verify JWT-SVID: %w", err)
	}

	return id, nil
}

// keyOf gives the name of the key that a token says it was signed with (RFC 7515, section
// 4.1.4).
func keyOf(token string) (string, error) {
	head, _, _ := strings.Cut(token, ".")

	data, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		return "", rejected("read JWT-SVID: its header is not base64url")
	}

	var header struct {
		KeyID string `json:"kid"`
	}

	if err := json.Unmarshal(data, &header); err != nil || header.KeyID == "" {
		return "", rejected("read JWT-SVID: its header names no key")
	}

	return header.KeyID, nil
}

// jwtBundle gives the server's keys, fetched again where they are old, or do not have the key
// that is asked for. One fetch at a time.
func (r *Registry) jwtBundle(ctx context.Context, key string) (*jwtbundle.Bundle, error) {
	if known := r.keys.have(key, r.options.Clock.Now()); known != nil {
		return known, nil
	}

	r.keys.fetching.Lock()
	defer r.keys.fetching.Unlock()

	if known := r.keys.have(key, r.options.Clock.Now()); known != nil {
		return known, nil // somebody else has fetched them meanwhile
	}

	bundle, err := r.bundle(ctx)
	if err != nil {
		return nil, err
	}

	authorities := map[string]crypto.PublicKey{}

	for _, authority := range bundle.GetJwtAuthorities() {
		if authority.GetTainted() {
			continue
		}

		public, err := x509.ParsePKIXPublicKey(authority.GetPublicKey())
		if err != nil {
			return nil, failed("read JWT authorities of SPIRE server", fmt.Errorf("key %s: %w", authority.GetKeyId(), err))
		}

		authorities[authority.GetKeyId()] = public
	}

	fresh := jwtbundle.FromJWTAuthorities(r.trustDomain, authorities)
	r.keys.keep(fresh, r.options.Clock.Now())

	return fresh, nil
}
