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
	// maxPublic bounds a TPM2B_PUBLIC: an RSA 3072 key with a policy takes half of it.
	maxPublic = 1 << 10
	// defaultExponent is what exponent 0 stands for (TPM 2.0 Library, part 2, 12.2.3.5).
	defaultExponent = 65537
)

// ErrPublic is within the errors of public areas that are not certified.
var ErrPublic = errors.New("the key cannot be certified")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrPublic, fmt.Errorf(format, args...)) //nolint:err113 // the words differ by key
}

// ReadPublic reads the TPM2B_PUBLIC of a key that can be certified: one that signs, for
// whoever may use the TPM, with RSA of 2048 or 3072 bits (PKCS #1 v1.5) or ECDSA on P-256,
// and SHA-256; that a TPM made, and that can be moved to no other. Errors are ErrPublic.
func ReadPublic(data []byte) (crypto.PublicKey, error) {
	if len(data) > maxPublic {
		return nil, refuse("its public area has %d bytes, more than %d", len(data), maxPublic)
	}

	outer, err := tpm2.Unmarshal[tpm2.TPM2BPublic](data)
	if err != nil {
		return nil, refuse("its public area is no TPM2B_PUBLIC: %w", err)
	}

	public, err := outer.Contents()
	if err != nil {
		return nil, refuse("its public area is no TPM2B_PUBLIC: %w", err)
	}

	// What is certified is what was read: nothing follows, and nothing is said in two ways.
	if !bytes.Equal(tpm2.Marshal(tpm2.New2B(*public)), data) {
		return nil, refuse("its public area holds more than a TPM2B_PUBLIC")
	}

	if err := checkAttributes(public.ObjectAttributes); err != nil {
		return nil, err
	}

	switch public.Type {
	case tpm2.TPMAlgRSA:
		return readRSA(public)
	case tpm2.TPMAlgECC:
		return readECC(public)
	default:
		return nil, refuse("it is of type %#x: it has to be RSA or ECC", uint16(public.Type))
	}
}

// checkAttributes judges what the key says of itself (TPM 2.0 Library, part 2, 8.3; TCG,
// TPM 2.0 Keys for Device Identity and Attestation, section 7.2).
func checkAttributes(a tpm2.TPMAObject) error {
	switch {
	case !a.FixedTPM || !a.FixedParent || a.EncryptedDuplication:
		return refuse("it can be moved out of its TPM: it needs the attributes fixedTPM and fixedParent")
	case !a.SensitiveDataOrigin:
		return refuse("it was made outside its TPM: it needs the attribute sensitiveDataOrigin")
	case !a.SignEncrypt || a.Decrypt:
		return refuse("it is not for signing alone: it needs the attribute sign, and not decrypt")
	case a.Restricted:
		return refuse("it is restricted, as attestation keys are: a device identity signs what others give it")
	case !a.UserWithAuth:
		return refuse("it cannot be used with a password: it needs the attribute userWithAuth")
	default:
		return nil
	}
}

func readRSA(public *tpm2.TPMTPublic) (crypto.PublicKey, error) {
	parameters, err := public.Parameters.RSADetail()
	if err != nil {
		return nil, refuse("its parameters are not those of RSA: %w", err)
	}

	unique, err := public.Unique.RSA()
	if err != nil {
		return nil, refuse("it has no modulus: %w", err)
	}

	scheme, err := parameters.Scheme.Details.RSASSA()
	if err != nil || parameters.Scheme.Scheme != tpm2.TPMAlgRSASSA || scheme.HashAlg != tpm2.TPMAlgSHA256 {
		return nil, refuse("it does not sign by RSASSA with SHA-256")
	}

	key, err := tpm2.RSAPub(parameters, unique)
	if err != nil {
		return nil, refuse("it is no RSA key: %w", err)
	}

	bits := key.N.BitLen()

	switch {
	case bits != 2048 && bits != 3072 || bits != int(parameters.KeyBits):
		return nil, refuse("its modulus has %d bits: it has to have 2048 or 3072, and as many as it says", bits)
	case key.N.Bit(0) == 0 || key.E != defaultExponent:
		return nil, refuse("its modulus is even, or its exponent is not %d", defaultExponent)
	}

	return key, nil
}

func readECC(public *tpm2.TPMTPublic) (crypto.PublicKey, error) {
	parameters, err := public.Parameters.ECCDetail()
	if err != nil {
		return nil, refuse("its parameters are not those of ECC: %w", err)
	}

	unique, err := public.Unique.ECC()
	if err != nil {
		return nil, refuse("it has no point: %w", err)
	}

	if parameters.CurveID != tpm2.TPMECCNistP256 {
		return nil, refuse("its curve is %#x: it has to be P-256", uint16(parameters.CurveID))
	}

	scheme, err := parameters.Scheme.Details.ECDSA()
	if err != nil || parameters.Scheme.Scheme != tpm2.TPMAlgECDSA || scheme.HashAlg != tpm2.TPMAlgSHA256 {
		return nil, refuse("it does not sign by ECDSA with SHA-256")
	}

	key, err := tpm2.ECDSAPub(parameters, unique)
	if err != nil {
		return nil, refuse("it is no ECC key: %w", err)
	}

	if _, err := key.ECDH(); err != nil {
		return nil, refuse("its point is not on its curve: %w", err)
	}

	return key, nil
}

// Fingerprint names a key: the SHA-256 of its TPM2B_PUBLIC, in hexadecimal.
func Fingerprint(public []byte) string {
	sum := sha256.Sum256(public)

	return hex.EncodeToString(sum[:])
}
