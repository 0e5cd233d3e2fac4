// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"encoding/asn1"
	"errors"
	"fmt"
	"os"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
	"github.com/google/go-tpm/tpm2/transport/linuxtpm"
	"github.com/google/go-tpm/tpm2/transport/linuxudstpm"
)

const (
	// ekCertificateRSA is where TPMs keep the certificate of their RSA 2048 endorsement key
	// (TCG EK Credential Profile, section 2.2.1.4).
	ekCertificateRSA = tpm2.TPMHandle(0x01c00002)
	// maxEKCertificate bounds what is read of it.
	maxEKCertificate = 8 << 10
	// nvChunk is what every TPM gives in one answer (MAX_NV_BUFFER_SIZE is 512 at least).
	nvChunk = 512
	keyBits = 2048
)

// Key is a device identity's key. Nothing of it is secret outside its TPM.
type Key struct {
	// Request is the key's TPM2B_PUBLIC, as whoever certifies it wants it.
	Request []byte
	// Public is the key's TPMT_PUBLIC, Private the content of its TPM2B_PRIVATE: encrypted
	// by the TPM, for itself. They are what SPIRE loads.
	Public, Private []byte
	// EKCertificate of the TPM in DER.
	EKCertificate []byte
}

// Make has the TPM at the path make a key: a device file, or the socket of an emulator. An
// error says what the TPM lacks.
func Make(path string) (Key, error) {
	device, err := open(path)
	if err != nil {
		return Key{}, err
	}

	defer device.Close() //nolint:errcheck // nothing is left to be written

	// A TPM without a certificate is of no use: better known before a key is made.
	certificate, err := ekCertificate(device)
	if err != nil {
		return Key{}, fmt.Errorf("read endorsement certificate of TPM %s: %w", path, err)
	}

	key, err := create(device)
	if err != nil {
		return Key{}, fmt.Errorf("make key in TPM %s: %w", path, err)
	}

	key.EKCertificate = certificate

	return key, nil
}

func open(path string) (transport.TPMCloser, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open TPM: there is no %s: the machine has no TPM 2.0, or its kernel no driver for it", path)
	}

	if err != nil {
		return nil, fmt.Errorf("open TPM: %w", err)
	}

	var device transport.TPMCloser

	if info.Mode()&os.ModeSocket != 0 {
		device, err = linuxudstpm.Open(path)
	} else {
		device, err = linuxtpm.Open(path)
	}

	if err != nil {
		return nil, fmt.Errorf("open TPM %s: %w", path, err)
	}

	return device, nil
}

// storageRoot is the template of the storage root key that SPIRE makes for itself when it
// loads the key: H-1 of the TCG EK Credential Profile (section B.6), so the same key.
func storageRoot() tpm2.TPMTPublic {
	root := tpm2.RSASRKTemplate
	root.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{})

	return root
}

// template is that of the key: it signs, never leaves its TPM, and was born there.
func template() tpm2.TPMTPublic {
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

func create(device transport.TPM) (Key, error) {
	root, err := tpm2.CreatePrimary{
		PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
		InPublic:      tpm2.New2B(storageRoot()),
	}.Execute(device)
	if err != nil {
		return Key{}, fmt.Errorf("create storage root key: %w", err)
	}

	defer func() { _, _ = tpm2.FlushContext{FlushHandle: root.ObjectHandle}.Execute(device) }()

	made, err := tpm2.Create{
		ParentHandle: tpm2.AuthHandle{Handle: root.ObjectHandle, Name: root.Name, Auth: tpm2.PasswordAuth(nil)},
		InPublic:     tpm2.New2B(template()),
	}.Execute(device)
	if err != nil {
		return Key{}, fmt.Errorf("create key: %w", err)
	}

	return Key{Request: tpm2.Marshal(made.OutPublic), Public: made.OutPublic.Bytes(), Private: made.OutPrivate.Buffer}, nil
}

// ekCertificate reads the certificate without what may follow it: some TPMs fill it up.
func ekCertificate(device transport.TPM) ([]byte, error) {
	public, err := tpm2.NVReadPublic{NVIndex: ekCertificateRSA}.Execute(device)
	if errors.Is(err, tpm2.TPMRCHandle) {
		return nil, errors.New("it has none for RSA 2048: whoever made the TPM has to certify its endorsement key " +
			"(swtpm_setup --create-ek-cert)")
	}

	if err != nil {
		return nil, fmt.Errorf("find certificate: %w", err)
	}

	contents, err := public.NVPublic.Contents()
	if err != nil {
		return nil, fmt.Errorf("find certificate: %w", err)
	}

	if contents.DataSize > maxEKCertificate {
		return nil, fmt.Errorf("it has %d bytes, more than %d", contents.DataSize, maxEKCertificate)
	}

	var data []byte

	for offset := uint16(0); offset < contents.DataSize; {
		part, err := tpm2.NVRead{
			AuthHandle: tpm2.AuthHandle{Handle: ekCertificateRSA, Name: public.NVName, Auth: tpm2.PasswordAuth(nil)},
			NVIndex:    tpm2.NamedHandle{Handle: ekCertificateRSA, Name: public.NVName},
			Size:       min(nvChunk, contents.DataSize-offset),
			Offset:     offset,
		}.Execute(device)
		if err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}

		if len(part.Data.Buffer) == 0 {
			return nil, errors.New("it ends early")
		}

		data = append(data, part.Data.Buffer...)
		offset = uint16(len(data)) //nolint:gosec // at most DataSize
	}

	var certificate asn1.RawValue
	if _, err := asn1.Unmarshal(data, &certificate); err != nil {
		return nil, fmt.Errorf("what is in its place is no certificate: %w", err)
	}

	return certificate.FullBytes, nil
}
