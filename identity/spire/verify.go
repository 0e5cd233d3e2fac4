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
	// maxAge is the maximum age of the cached keys. The operator accepts a revoked key for at most
	// this time.
	maxAge = time.Minute
	// minAge is the minimum age of the cached keys before an SVID with an unknown key makes the
	// operator fetch them again.
	minAge = 5 * time.Second
	// maxToken is the maximum size of a JWT-SVID in bytes.
	maxToken = 16 << 10
)

// keyCache caches the server's keys that sign JWT-SVIDs.
type keyCache struct {
	// fetchMu is held by the goroutine that fetches the keys. A goroutine that finds its key in the
	// cache does not wait for it.
	fetchMu sync.Mutex

	mu        sync.Mutex
	bundle    *jwtbundle.Bundle
	fetchedAt time.Time
}

// get returns the cached keys, or nil if they have to be fetched. It returns them if they are younger
// than maxAge, and if they contain the key or are younger than minAge.
func (k *keyCache) get(keyID string, now time.Time) *jwtbundle.Bundle {
	k.mu.Lock()
	defer k.mu.Unlock()

	if k.bundle == nil {
		return nil
	}

	age := now.Sub(k.fetchedAt)
	if age < maxAge && (k.bundle.HasJWTAuthority(keyID) || age < minAge) {
		return k.bundle
	}

	return nil
}

func (k *keyCache) store(bundle *jwtbundle.Bundle, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()

	k.bundle, k.fetchedAt = bundle, now
}

// Verify returns the identity that the JWT-SVID proves; see identity.Registry.
func (r *Registry) Verify(ctx context.Context, token, audience string) (identity.ID, error) {
	if audience == "" || len(token) > maxToken {
		return identity.ID{}, newRejectedError("verify JWT-SVID: it has more than %d bytes, or the audience is empty", maxToken)
	}

	keyID, err := signingKeyID(token)
	if err != nil {
		return identity.ID{}, err
	}

	bundle, err := r.jwtBundle(ctx, keyID)
	if err != nil {
		return identity.ID{}, err
	}

	svid, err := jwtsvid.ParseAndValidate(token, bundle, []string{audience})
	if err != nil {
		return identity.ID{}, newRejectedError("verify JWT-SVID: %w", err)
	}

	id, err := identity.ParsePath(svid.ID.Path())
	if err != nil {
		return identity.ID{}, newRejectedError("verify JWT-SVID: %w", err)
	}

	return id, nil
}

// signingKeyID returns the ID of the key that the token's header names as its signing key (RFC 7515,
// section 4.1.4).
func signingKeyID(token string) (string, error) {
	head, _, _ := strings.Cut(token, ".")

	data, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		return "", newRejectedError("decode JWT-SVID: its header is not base64url")
	}

	var header struct {
		KeyID string `json:"kid"`
	}

	if err := json.Unmarshal(data, &header); err != nil || header.KeyID == "" {
		return "", newRejectedError("decode JWT-SVID: its header names no key")
	}

	return header.KeyID, nil
}

// jwtBundle returns the server's keys. It fetches them if the cached keys are too old or do not contain
// the key. Only one goroutine fetches the keys at a time.
func (r *Registry) jwtBundle(ctx context.Context, keyID string) (*jwtbundle.Bundle, error) {
	if cached := r.keys.get(keyID, r.options.Clock.Now()); cached != nil {
		return cached, nil
	}

	r.keys.fetchMu.Lock()
	defer r.keys.fetchMu.Unlock()

	if cached := r.keys.get(keyID, r.options.Clock.Now()); cached != nil {
		return cached, nil // another goroutine has fetched them in the meantime
	}

	bundle, err := r.fetchBundle(ctx)
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
			return nil, wrapError("parse JWT authorities of SPIRE server", fmt.Errorf("key %s: %w", authority.GetKeyId(), err))
		}

		authorities[authority.GetKeyId()] = public
	}

	fetched := jwtbundle.FromJWTAuthorities(r.trustDomain, authorities)
	r.keys.store(fetched, r.options.Clock.Now())

	return fetched, nil
}
