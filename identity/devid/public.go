// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
)

const (
	// maxPublic is the maximum size of a TPM2B_PUBLIC in bytes. An RSA 3072 key with a policy needs
	// half of it.
	maxPublic = 1 << 10
	// defaultExponent is the exponent that the value 0 means (TPM 2.0 Library, part 2, 12.2.3.5).
	defaultExponent = 65537
)

// ErrKeyNotCertifiable means that a key cannot be certified because of its public area.
var ErrKeyNotCertifiable = errors.New("the key cannot be certified")

func newKeyError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrKeyNotCertifiable, fmt.Errorf(format, args...)) //nolint:err113 // the text depends on the key
}

// ParsePublic parses the TPM2B_PUBLIC of a key that can be certified. Such a key signs with SHA-256, and
// with RSA of 2048 or 3072 bits (PKCS #1 v1.5) or ECDSA on P-256. It can be used with a password. A TPM
// has created it, and it cannot be moved to another TPM. Each error wraps ErrKeyNotCertifiable.
func ParsePublic(data []byte) (crypto.PublicKey, error) {
	if len(data) > maxPublic {
		return nil, newKeyError("its public area has %d bytes, but the maximum is %d", len(data), maxPublic)
	}

	outer, err := tpm2.Unmarshal[tpm2.TPM2BPublic](data)
	if err != nil {
		return nil, newKeyError("its public area is no TPM2B_PUBLIC: %w", err)
	}

	public, err := outer.Contents()
	if err != nil {
		return nil, newKeyError("its public area is no TPM2B_PUBLIC: %w", err)
	}

	// The encoding must be the canonical one without trailing data, so that the certified key is exactly
	// the parsed key.
	if !bytes.Equal(tpm2.Marshal(tpm2.New2B(*public)), data) {
		return nil, newKeyError("its public area contains more than a TPM2B_PUBLIC")
	}

	if err := checkAttributes(public.ObjectAttributes); err != nil {
		return nil, err
	}

	switch public.Type {
	case tpm2.TPMAlgRSA:
		return parseRSA(public)
	case tpm2.TPMAlgECC:
		return parseECC(public)
	default:
		return nil, newKeyError("it is of type %#x: it must be an RSA or ECC key", uint16(public.Type))
	}
}

// checkAttributes returns an error if the attributes of the key are not those of a device identity (TPM
// 2.0 Library, part 2, 8.3; TCG, TPM 2.0 Keys for Device Identity and Attestation, section 7.2).
func checkAttributes(a tpm2.TPMAObject) error {
	switch {
	case !a.FixedTPM || !a.FixedParent || a.EncryptedDuplication:
		return newKeyError("it can be moved out of its TPM: it needs the attributes fixedTPM and fixedParent")
	case !a.SensitiveDataOrigin:
		return newKeyError("it was created outside its TPM: it needs the attribute sensitiveDataOrigin")
	case !a.SignEncrypt || a.Decrypt:
		return newKeyError("it is not for signing alone: it needs the attribute sign, and not decrypt")
	case a.Restricted:
		return newKeyError("it is restricted like an attestation key: a device identity must sign data from outside the TPM")
	case !a.UserWithAuth:
		return newKeyError("it cannot be used with a password: it needs the attribute userWithAuth")
	default:
		return nil
	}
}

// parseRSA returns an RSA key of 2048 or 3072 bits that signs with RSASSA and SHA-256. It rejects all other
// RSA keys.
func parseRSA(public *tpm2.TPMTPublic) (crypto.PublicKey, error) {
	parameters, err := public.Parameters.RSADetail()
	if err != nil {
		return nil, newKeyError("its parameters are not those of RSA: %w", err)
	}

	unique, err := public.Unique.RSA()
	if err != nil {
		return nil, newKeyError("it has no modulus: %w", err)
	}

	scheme, err := parameters.Scheme.Details.RSASSA()
	if err != nil || parameters.Scheme.Scheme != tpm2.TPMAlgRSASSA || scheme.HashAlg != tpm2.TPMAlgSHA256 {
		return nil, newKeyError("it does not sign with RSASSA and SHA-256")
	}

	key, err := tpm2.RSAPub(parameters, unique)
	if err != nil {
		return nil, newKeyError("it is not a valid RSA key: %w", err)
	}

	bits := key.N.BitLen()

	switch {
	case bits != 2048 && bits != 3072 || bits != int(parameters.KeyBits):
		return nil, newKeyError("its modulus has %d bits: it must have 2048 or 3072 bits, and the size in the public area", bits)
	case key.N.Bit(0) == 0 || key.E != defaultExponent:
		return nil, newKeyError("its modulus is even, or its exponent is not %d", defaultExponent)
	}

	return key, nil
}

// parseECC returns a key on the curve P-256 that signs with ECDSA and SHA-256. It rejects all other
// elliptic curve keys.
func parseECC(public *tpm2.TPMTPublic) (crypto.PublicKey, error) {
	parameters, err := public.Parameters.ECCDetail()
	if err != nil {
		return nil, newKeyError("its parameters are not those of ECC: %w", err)
	}

	unique, err := public.Unique.ECC()
	if err != nil {
		return nil, newKeyError("it has no point: %w", err)
	}

	if parameters.CurveID != tpm2.TPMECCNistP256 {
		return nil, newKeyError("its curve is %#x: it must be P-256", uint16(parameters.CurveID))
	}

	scheme, err := parameters.Scheme.Details.ECDSA()
	if err != nil || parameters.Scheme.Scheme != tpm2.TPMAlgECDSA || scheme.HashAlg != tpm2.TPMAlgSHA256 {
		return nil, newKeyError("it does not sign with ECDSA and SHA-256")
	}

	key, err := tpm2.ECDSAPub(parameters, unique)
	if err != nil {
		return nil, newKeyError("it is not a valid ECC key: %w", err)
	}

	if _, err := key.ECDH(); err != nil {
		return nil, newKeyError("its point is not on its curve: %w", err)
	}

	return key, nil
}

// Fingerprint returns the SHA-256 digest of its argument in hexadecimal. The digest of a TPM2B_PUBLIC
// identifies the key.
func Fingerprint(public []byte) string {
	sum := sha256.Sum256(public)

	return hex.EncodeToString(sum[:])
}
