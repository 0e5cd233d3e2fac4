// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package stamp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/api/adapter"
)

// Errors of Verify, for errors.Is. If Verify returns one of them, the object must not be deleted.
var (
	// ErrNoIdentity is the error for an object without adapter, resource ID or HMAC.
	ErrNoIdentity = errors.New("the object has no ownership labels or no identity")
	// ErrUnknownKey is the error for an HMAC that was made with a key that Keys does not have, and for a value of an
	// unknown version or form.
	ErrUnknownKey = errors.New("the identity is signed with an unknown key")
	// ErrForged is the error for an HMAC that does not match the labels and the object.
	ErrForged = errors.New("the labels and the identity do not match")
)

// Versions of the annotation's value. KEY identifies the key: it is the first 8 hex digits of the key's SHA-256.
// OWNER and MAC are HMAC-SHA256 in base64url without padding, and DIGEST is a SHA-256 in the same encoding.
//
//	v1.KEY.OWNER               written by earlier releases, which signed only the owner
//	v2.KEY.OWNER.DIGEST.MAC    DIGEST is that of the content; MAC covers the owner, the generation and DIGEST
//	v2.KEY.detached.MAC        of a detached object
const (
	versionOwner = "v1"
	version      = "v2"
	detachedPart = "detached"

	ownerPurpose    = "hyperfleet.io/identity"
	contentPurpose  = "hyperfleet.io/content"
	detachedPurpose = "hyperfleet.io/detached"
)

// Identity is the input of the HMAC OWNER (annotation hyperfleet.io/identity).
type Identity struct {
	// Adapter and ResourceID are the values of the labels.
	Adapter, ResourceID string
	// Group, Kind, Namespace and Name identify the object. The API version is not part of its
	// identity.
	Group, Kind, Namespace, Name string
}

type identityValue struct {
	key key
	// version is v1 or v2.
	version string
	// owner, digest and mac are the parts OWNER, DIGEST and MAC. digest and mac are empty in v1, and digest is also
	// empty on an object that an earlier release applied.
	owner, digest, mac string
	isDetached         bool
}

// isMACValid reports whether the marks are as they were signed. Earlier releases signed only the owner. MAC covers the
// owner, too, so one HMAC is enough.
func (v identityValue) isMACValid(id Identity, generation int64) bool {
	switch {
	case v.isDetached:
		return false
	case v.version == versionOwner:
		return hmac.Equal([]byte(v.owner), []byte(computeOwner(v.key, v.version, id)))
	default:
		return hmac.Equal([]byte(v.mac), []byte(computeContent(v.key, id, generation, v.digest)))
	}
}

// parse parses the value of the annotation and finds its key. It returns ErrNoIdentity for an empty value, and ErrUnknownKey
// for an unknown form or key. It does not verify HMACs.
func (k *Keys) parse(value string) (identityValue, error) {
	if value == "" {
		return identityValue{}, ErrNoIdentity
	}

	parts := strings.Split(value, ".")
	out := identityValue{version: parts[0]}

	switch {
	case len(parts) == 3 && parts[0] == versionOwner: // of an earlier release
		out.owner = parts[2]
	case len(parts) == 4 && parts[0] == version && parts[2] == detachedPart:
		out.isDetached, out.mac = true, parts[3]
	case len(parts) == 5 && parts[0] == version:
		out.owner, out.digest, out.mac = parts[2], parts[3], parts[4]
	default:
		return out, ErrUnknownKey
	}

	for _, key := range k.keys {
		if key.id == parts[1] {
			out.key = key

			return out, nil
		}
	}

	return out, ErrUnknownKey
}

// Sign returns the value of the annotation, signed with the first key. The digest is that of the content that the
// object was applied with, or empty if it is unknown.
func (k *Keys) Sign(id Identity, generation int64, digest string) string {
	first := k.keys[0]

	return strings.Join([]string{
		version, first.id, computeOwner(first, version, id), digest, computeContent(first, id, generation, digest),
	}, ".")
}

// signDetached returns the value of the annotation of a detached object.
func (k *Keys) signDetached(id Identity) string {
	first := k.keys[0]

	return strings.Join([]string{version, first.id, detachedPart, computeDetached(first, id)}, ".")
}

// Verify returns nil if the HMAC of an object proves what its labels say. The object may have only
// its metadata. Errors: ErrNoIdentity, ErrUnknownKey, ErrForged.
func (k *Keys) Verify(object metav1.Object, kind schema.GroupKind) error {
	adapterName, _ := lookUpLabel(object, adapter.LabelAdapter)
	resourceID, _ := lookUpLabel(object, adapter.LabelResourceID)
	id := newIdentity(object, kind, adapterName, resourceID)

	if id.Adapter == "" || id.ResourceID == "" {
		return ErrNoIdentity
	}

	return k.verifyOwner(object, id)
}

func (k *Keys) parseIdentity(object metav1.Object) (identityValue, error) {
	value, _ := lookUpAnnotation(object, adapter.AnnotationIdentity)

	return k.parse(value)
}

// verifyOwner returns nil if the HMAC OWNER in the annotation of an object is valid for the identity.
func (k *Keys) verifyOwner(object metav1.Object, id Identity) error {
	value, err := k.parseIdentity(object)
	if err != nil {
		return err
	}

	if value.isDetached || !hmac.Equal([]byte(value.owner), []byte(computeOwner(value.key, value.version, id))) {
		return ErrForged
	}

	return nil
}

// isSignedDetached reports whether the annotation proves that the owner has detached the object.
func (k *Keys) isSignedDetached(object metav1.Object, id Identity) bool {
	value, err := k.parseIdentity(object)

	return err == nil && value.isDetached && hmac.Equal([]byte(value.mac), []byte(computeDetached(value.key, id)))
}

func newIdentity(object metav1.Object, kind schema.GroupKind, adapterName, resourceID string) Identity {
	return Identity{
		Adapter: adapterName, ResourceID: resourceID,
		Group: kind.Group, Kind: kind.Kind, Namespace: object.GetNamespace(), Name: object.GetName(),
	}
}

// computeOwner returns the HMAC OWNER. It differs between the versions, so that nobody can turn marks that are signed
// as a whole into those of an earlier release.
func computeOwner(signingKey key, version string, id Identity) string {
	return computeMAC(signingKey, ownerPurpose, version, id)
}

func computeDetached(signingKey key, id Identity) string {
	return computeMAC(signingKey, detachedPurpose, version, id)
}

func computeContent(signingKey key, id Identity, generation int64, digest string) string {
	return computeMAC(signingKey, contentPurpose, version, id, strconv.FormatInt(generation, 10), digest)
}

// computeMAC returns the HMAC of an identity and more fields for a purpose. Each field is preceded by its length,
// so that two different inputs never have the same HMAC.
func computeMAC(signingKey key, purpose, version string, id Identity, more ...string) string {
	sum := hmac.New(sha256.New, []byte(signingKey.secret.Reveal()))

	for _, field := range append([]string{
		purpose, version, id.Adapter, id.ResourceID, id.Group, id.Kind, id.Namespace, id.Name,
	}, more...) {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(field))))
		sum.Write([]byte(field))
	}

	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil))
}
