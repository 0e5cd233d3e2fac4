// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
)

const (
	// tagKey is the struct tag that marks each field of a configuration as perHost or fleet.
	tagKey  = "host"
	perHost = "per-host"
	fleet   = "fleet"
)

// Digest is the digest of one part.
type Digest struct {
	Label  string `json:"label"`
	SHA256 string `json:"sha256"`
}

// Digest returns the digest of everything that is pushed for the part except its secret. It does
// not cover the probe, because an improved probe is no reason to push again.
func (p Part) Digest() Digest {
	return newDigest(p.Label, string(p.Kind), p.Path, fmt.Sprintf("%04o", p.Mode), p.Owner, p.Content.SHA256(), p.Apply)
}

// Digests returns the digests of the hashed parts, in order.
func (p Plan) Digests() []Digest {
	var out []Digest

	for _, part := range p.parts {
		if part.IsHashed() {
			out = append(out, part.Digest())
		}
	}

	return out
}

// Hash returns the digest of the hashed parts and their order.
func (p Plan) Hash() string { return hashDigests(p.Digests()) }

// newDigest returns the digest of a label and fields. It hashes the length of each field, so that
// different fields can't give the same input.
func newDigest(label string, fields ...string) Digest {
	h := sha256.New()
	for _, field := range append([]string{label}, fields...) {
		fmt.Fprintf(h, "%d:%s,", len(field), field)
	}

	return Digest{Label: label, SHA256: hex.EncodeToString(h.Sum(nil))}
}

func hashDigests(digests []Digest) string {
	var fields []string
	for _, d := range digests {
		fields = append(fields, d.Label, d.SHA256)
	}

	return newDigest("host-config", fields...).SHA256
}

// ClearPerHost returns the configuration with every per-host field zeroed, so that only the fields
// that all hosts share are left.
func ClearPerHost[C any](cfg C) C {
	v := reflect.ValueOf(&cfg).Elem()

	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get(tagKey) == perHost {
			v.Field(i).SetZero()
		}
	}

	return cfg
}

// ValidateTags returns an error for the first field of a configuration that is not exported or not
// tagged with exactly one of host:"per-host" and host:"fleet".
func ValidateTags[C any]() error {
	t := reflect.TypeFor[C]()

	for field := range t.Fields() {
		if tag := field.Tag.Get(tagKey); tag != perHost && tag != fleet || !field.IsExported() {
			return fmt.Errorf(`field %s of %s: must be exported and tagged host:"per-host" or host:"fleet"`, field.Name, t)
		}
	}

	return nil
}

// HostConfigHash returns the digest of what a configuration pushes to every host of a fleet: the
// digest of its draft with all per-host fields zeroed. A part that can't be rendered contributes
// its error, so the hash is stable while the error exists and changes when it is fixed.
func HostConfigHash[C any](cfg C, draft func(C) *Draft) string {
	return hashDigests(draft(ClearPerHost(cfg)).digests())
}

// HasDrifted returns true if a host with the applied hash needs the configuration of the desired
// hash. A host without an applied hash was never pushed to, or was pushed to by a version that
// recorded no hash, so it has drifted. Without a desired hash, no host has drifted.
func HasDrifted(applied, desired string) bool {
	return desired != "" && applied != desired
}
