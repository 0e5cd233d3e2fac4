// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package stamp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/api/adapter"
)

// Errors of Verify, for errors.Is. If Verify returns one of them, the object must not be deleted.
var (
	// ErrNoIdentity is the error for an object without adapter, resource ID or HMAC.
	ErrNoIdentity = errors.New("the object has no ownership labels or no identity")
	// ErrUnknownKey is the error for an HMAC that was made with a key that Keys does not have, or
	// whose version is unknown.
	ErrUnknownKey = errors.New("the identity is signed with an unknown key")
	// ErrForged is the error for an HMAC that does not match the labels and the object.
	ErrForged = errors.New("the labels and the identity do not match")
)

// version is the first part of the annotation's value v1.KEY.MAC. KEY identifies the key: it is the
// first 8 hex digits of the key's SHA-256. MAC is the HMAC-SHA256 in base64url without padding.
const version = "v1"

// Identity is the input of the HMAC (annotation hyperfleet.io/identity).
type Identity struct {
	// Adapter and ResourceID are the values of the labels.
	Adapter, ResourceID string
	// Group, Kind, Namespace and Name identify the object. The API version is not part of its
	// identity.
	Group, Kind, Namespace, Name string
}

// Sign returns the value of the annotation, signed with the first key.
func (k *Keys) Sign(id Identity) string {
	first := k.keys[0]

	return version + "." + first.id + "." + computeMAC(first, id)
}

// Verify returns nil if the HMAC of an object proves what its labels say. The object may have only
// its metadata. Errors: ErrNoIdentity, ErrUnknownKey, ErrForged.
func (k *Keys) Verify(object metav1.Object, kind schema.GroupKind) error {
	labels := object.GetLabels()
	id := newIdentity(object, kind, labels[adapter.LabelAdapter], labels[adapter.LabelResourceID])
	value := object.GetAnnotations()[adapter.AnnotationIdentity]

	if id.Adapter == "" || id.ResourceID == "" || value == "" {
		return ErrNoIdentity
	}

	return k.verifyValue(value, id)
}

func (k *Keys) verifyValue(value string, id Identity) error {
	parts := strings.Split(value, ".")
	if len(parts) != 3 || parts[0] != version {
		return ErrUnknownKey
	}

	for _, key := range k.keys {
		if key.id != parts[1] {
			continue
		}

		if hmac.Equal([]byte(parts[2]), []byte(computeMAC(key, id))) {
			return nil
		}

		return ErrForged
	}

	return ErrUnknownKey
}

func newIdentity(object metav1.Object, kind schema.GroupKind, adapterName, resourceID string) Identity {
	return Identity{
		Adapter: adapterName, ResourceID: resourceID,
		Group: kind.Group, Kind: kind.Kind, Namespace: object.GetNamespace(), Name: object.GetName(),
	}
}

// computeMAC returns the HMAC of an identity. Each field is preceded by its length, so that two
// different identities never have the same input.
func computeMAC(signingKey key, id Identity) string {
	sum := hmac.New(sha256.New, []byte(signingKey.secret.Reveal()))

	for _, field := range []string{
		"hyperfleet.io/identity", version, id.Adapter, id.ResourceID, id.Group, id.Kind, id.Namespace, id.Name,
	} {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(field))))
		sum.Write([]byte(field))
	}

	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil))
}
