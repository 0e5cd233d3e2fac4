// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"encoding/asn1"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

const (
	// ekCertificateIndex is the NV index of the certificate of a TPM's RSA 2048 endorsement key (TCG EK
	// Credential Profile, section 2.2.1.4).
	ekCertificateIndex = tpm2.TPMHandle(0x01c00002)
	// maxEKCertificateBytes is the maximum size of the NV index.
	maxEKCertificateBytes = 8 << 10
	// nvChunk is the number of bytes that every TPM can return in one response (MAX_NV_BUFFER_SIZE is at
	// least 512).
	nvChunk = 512
	keyBits = 2048
)

// Key is the key of a device identity. It contains no secrets, because only its TPM can decrypt Private.
type Key struct {
	// PublicForRequest is the key's TPM2B_PUBLIC, which the request for a certificate contains.
	PublicForRequest []byte
	// Public is the key's TPMT_PUBLIC. Private is the content of its TPM2B_PRIVATE, which the TPM has
	// encrypted for itself. SPIRE loads both.
	Public, Private []byte
	// EKCertificate is the certificate of the TPM's endorsement key in DER.
	EKCertificate []byte
}

// CreateKey creates a key in the TPM at the path, which is a device file or the socket of an emulator. It
// returns an error if the TPM has no endorsement key certificate.
func CreateKey(path string) (Key, error) {
	device, err := openTPM(path)
	if err != nil {
		return Key{}, err
	}

	defer device.Close() //nolint:errcheck // all commands have completed

	// The key is useless without the certificate, so the certificate is read first.
	certificate, err := readEKCertificate(device)
	if err != nil {
		return Key{}, fmt.Errorf("read endorsement certificate of TPM %s: %w", path, err)
	}

	key, err := createInTPM(device)
	if err != nil {
		return Key{}, fmt.Errorf("create key in TPM %s: %w", path, err)
	}

	key.EKCertificate = certificate

	return key, nil
}

// storageRootTemplate returns the template of the storage root key that SPIRE creates when it loads the key:
// H-1 of the TCG EK Credential Profile (section B.6). The same template yields the same storage root key.
func storageRootTemplate() tpm2.TPMTPublic {
	root := tpm2.RSASRKTemplate
	root.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{})

	return root
}

// keyTemplate returns the template of a signing key that the TPM generates and that never leaves the TPM.
func keyTemplate() tpm2.TPMTPublic {
	return tpm2.TPMTPublic{
		Type:    tpm2.TPMAlgRSA,
		NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, SignEncrypt: true,
		},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgRSA, &tpm2.TPMSRSAParms{
			Symmetric: tpm2.TPMTSymDefObject{Algorithm: tpm2.TPMAlgNull},
			Scheme: tpm2.TPMTRSAScheme{
				Scheme:  tpm2.TPMAlgRSASSA,
				Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgRSASSA, &tpm2.TPMSSigSchemeRSASSA{HashAlg: tpm2.TPMAlgSHA256}),
			},
			KeyBits: keyBits,
		}),
		Unique: tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{}),
	}
}

// createInTPM creates the key as a child of the storage root key. The storage root key leaves the TPM's memory again.
func createInTPM(device transport.TPM) (Key, error) {
	root, err := tpm2.CreatePrimary{
		PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
		InPublic:      tpm2.New2B(storageRootTemplate()),
	}.Execute(device)
	if err != nil {
		return Key{}, fmt.Errorf("create storage root key: %w", err)
	}

	defer func() { _, _ = tpm2.FlushContext{FlushHandle: root.ObjectHandle}.Execute(device) }()

	created, err := tpm2.Create{
		ParentHandle: tpm2.AuthHandle{Handle: root.ObjectHandle, Name: root.Name, Auth: tpm2.PasswordAuth(nil)},
		InPublic:     tpm2.New2B(keyTemplate()),
	}.Execute(device)
	if err != nil {
		return Key{}, fmt.Errorf("create key: %w", err)
	}

	return Key{
		PublicForRequest: tpm2.Marshal(created.OutPublic), Public: created.OutPublic.Bytes(),
		Private: created.OutPrivate.Buffer,
	}, nil
}

// readEKCertificate reads the certificate of the endorsement key. It removes the padding that some TPMs add.
func readEKCertificate(device transport.TPM) ([]byte, error) {
	public, err := tpm2.NVReadPublic{NVIndex: ekCertificateIndex}.Execute(device)
	if errors.Is(err, tpm2.TPMRCHandle) {
		return nil, errors.New("the TPM has no certificate for RSA 2048: its manufacturer has to certify its endorsement key " +
			"(swtpm_setup --create-ek-cert)")
	}

	if err != nil {
		return nil, fmt.Errorf("find certificate: %w", err)
	}

	contents, err := public.NVPublic.Contents()
	if err != nil {
		return nil, fmt.Errorf("find certificate: %w", err)
	}

	if contents.DataSize > maxEKCertificateBytes {
		return nil, fmt.Errorf("the certificate has %d bytes, more than the limit of %d", contents.DataSize, maxEKCertificateBytes)
	}

	var data []byte

	for offset := uint16(0); offset < contents.DataSize; {
		part, err := tpm2.NVRead{
			AuthHandle: tpm2.AuthHandle{Handle: ekCertificateIndex, Name: public.NVName, Auth: tpm2.PasswordAuth(nil)},
			NVIndex:    tpm2.NamedHandle{Handle: ekCertificateIndex, Name: public.NVName},
			Size:       min(nvChunk, contents.DataSize-offset),
			Offset:     offset,
		}.Execute(device)
		if err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}

		if len(part.Data.Buffer) == 0 {
			return nil, errors.New("the TPM returned no more data before the end of the certificate")
		}

		data = append(data, part.Data.Buffer...)
		offset = uint16(len(data)) //nolint:gosec // the length is at most DataSize
	}

	var certificate asn1.RawValue
	if _, err := asn1.Unmarshal(data, &certificate); err != nil {
		return nil, fmt.Errorf("parse certificate: %w", err)
	}

	return certificate.FullBytes, nil
}
