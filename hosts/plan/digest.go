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
	// tagKey tags each field of a configuration as one of these two.
	tagKey  = "host"
	perHost = "per-host"
	fleet   = "fleet"
)

// Digest is the fingerprint of one part.
type Digest struct {
	Label  string `json:"label"`
	SHA256 string `json:"sha256"`
}

// Digest of the part: of all that is pushed, but for its secret. Probes are not pushed,
// and a better probe is no reason to push again.
func (p Part) Digest() Digest {
	return sum(p.Label, string(p.Kind), p.Path, fmt.Sprintf("%04o", p.Mode), p.Owner, p.Content.SHA256(), p.Apply)
}

// Digests of the hashed parts, in their order.
func (p Plan) Digests() []Digest {
	var out []Digest

	for _, part := range p.parts {
		if part.Hashed() {
			out = append(out, part.Digest())
		}
	}

	return out
}

// Hash is the digest over the hashed parts and their order.
func (p Plan) Hash() string { return hashOf(p.Digests()) }

// sum is the digest of fields that begin with a label. Lengths keep fields apart.
func sum(label string, fields ...string) Digest {
	h := sha256.New()
	for _, field := range append([]string{label}, fields...) {
		fmt.Fprintf(h, "%d:%s,", len(field), field)
	}

	return Digest{Label: label, SHA256: hex.EncodeToString(h.Sum(nil))}
}

func hashOf(digests []Digest) string {
	var fields []string
	for _, d := range digests {
		fields = append(fields, d.Label, d.SHA256)
	}

	return sum("host-config", fields...).SHA256
}

// Fleet gives the configuration with every field that belongs to one host zeroed: what
// is the same for all hosts.
func Fleet[C any](cfg C) C {
	v := reflect.ValueOf(&cfg).Elem()

	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get(tagKey) == perHost {
			v.Field(i).SetZero()
		}
	}

	return cfg
}

// CheckTags says which fields of a configuration are not tagged as exactly one of
// host:"per-host" and host:"fleet".
func CheckTags[C any]() error {
	t := reflect.TypeFor[C]()

	for field := range t.Fields() {
		if tag := field.Tag.Get(tagKey); tag != perHost && tag != fleet || !field.IsExported() {
			return fmt.Errorf(`field %s of %s: must be exported and tagged host:"per-host" or host:"fleet"`, field.Name, t)
		}
	}

	return nil
}

// HostConfigHash is the digest of what a configuration brings to every host of a fleet:
// its draft with all per-host fields zeroed. Parts that can't be rendered count with their
// error, so that the hash is the same each time, and another one when they are fixed.
func HostConfigHash[C any](cfg C, draft func(C) *Draft) string {
	return hashOf(draft(Fleet(cfg)).digests())
}

// Drifted says whether a host that carries one hash has to get the configuration of
// another. A host without one has never got any, or from a version that kept no hash:
// it drifts once. Without a desired hash there is nothing to push.
func Drifted(applied, desired string) bool {
	return desired != "" && applied != desired
}
