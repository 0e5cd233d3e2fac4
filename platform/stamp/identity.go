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

// What is wrong with an identity, for errors.Is. Any of them means: do not delete.
var (
	// ErrNoIdentity is an object without adapter, resource id or HMAC.
	ErrNoIdentity = errors.New("not stamped")
	// ErrUnknownKey is an HMAC by a key that is not among ours, or of a later version.
	ErrUnknownKey = errors.New("stamped with an unknown key")
	// ErrForged is an HMAC that does not fit labels and object.
	ErrForged = errors.New("labels and identity do not fit")
)

// version of the annotation's value, which is v1.KEY.MAC: KEY tells keys apart (8 hex
// digits of the key's SHA-256), MAC is the HMAC-SHA256 in base64url without padding.
const version = "v1"

// Identity is what the HMAC (annotation hyperfleet.io/identity) is computed over.
type Identity struct {
	// Adapter and ResourceID are the labels' values.
	Adapter, ResourceID string
	// Group, Kind, Namespace and Name are the object's own; the version of its API is not
	// part of who it is.
	Group, Kind, Namespace, Name string
}

// Sign gives the value of the annotation, made with the first key.
func (k *Keys) Sign(id Identity) string {
	first := k.keys[0]

	return version + "." + first.id + "." + mac(first, id)
}

// Verify is nil if the HMAC of an object proves what its labels claim. The object may be its
// metadata alone. Errors: ErrNoIdentity, ErrUnknownKey, ErrForged.
func (k *Keys) Verify(object metav1.Object, kind schema.GroupKind) error {
	labels := object.GetLabels()
	id := identityOf(object, kind, labels[adapter.LabelAdapter], labels[adapter.LabelResourceID])
	value := object.GetAnnotations()[adapter.AnnotationIdentity]

	if id.Adapter == "" || id.ResourceID == "" || value == "" {
		return ErrNoIdentity
	}

	return k.check(value, id)
}

func (k *Keys) check(value string, id Identity) error {
	parts := strings.Split(value, ".")
	if len(parts) != 3 || parts[0] != version {
		return ErrUnknownKey
	}

	for _, key := range k.keys {
		if key.id != parts[1] {
			continue
		}

		if hmac.Equal([]byte(parts[2]), []byte(mac(key, id))) {
			return nil
		}

		return ErrForged
	}

	return ErrUnknownKey
}

func identityOf(object metav1.Object, kind schema.GroupKind, adapterName, resourceID string) Identity {
	return Identity{
		Adapter: adapterName, ResourceID: resourceID,
		Group: kind.Group, Kind: kind.Kind, Namespace: object.GetNamespace(), Name: object.GetName(),
	}
}

// mac is over the fields with their lengths, so that no two identities are one text.
func mac(by key, id Identity) string {
	sum := hmac.New(sha256.New, []byte(by.secret.Reveal()))

	for _, field := range []string{
		"hyperfleet.io/identity", version, id.Adapter, id.ResourceID, id.Group, id.Kind, id.Namespace, id.Name,
	} {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(field))))
		sum.Write([]byte(field))
	}

	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil))
}
