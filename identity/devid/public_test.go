// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hyperfleet/hyperfleet/identity/devid"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

func newRSAPublicKey(t testing.TB) crypto.PublicKey { t.Helper(); return newKey(t, "rsa").Public() }

func newECCPublicKey(t testing.TB) crypto.PublicKey { t.Helper(); return newKey(t, "").Public() }

// encodePublicArea returns the TPM2B_PUBLIC of a key as a TPM encodes it, with the change of the case.
func encodePublicArea(t testing.TB, key crypto.PublicKey, change func(*tpm2.TPMTPublic)) []byte {
	t.Helper()

	area := tpm2.TPMTPublic{
		NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, SignEncrypt: true,
		},
	}

	switch key := key.(type) {
	case *rsa.PublicKey:
		area.Type = tpm2.TPMAlgRSA
		area.Parameters = newRSAParameters(uint16(key.N.BitLen()), tpm2.TPMAlgRSASSA, tpm2.TPMAlgSHA256)
		area.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: key.N.Bytes()})
	case *ecdsa.PublicKey:
		point, err := key.Bytes()
		if err != nil {
			t.Fatal(err)
		}

		area.Type = tpm2.TPMAlgECC
		area.Parameters = newECCParameters(tpm2.TPMECCNistP256, tpm2.TPMAlgSHA256)
		area.Unique = newECCPoint(point[1:33], point[33:])
	}

	if change != nil {
		change(&area)
	}

	return tpm2.Marshal(tpm2.New2B(area))
}

func newRSAParameters(bits uint16, scheme tpm2.TPMAlgID, hash tpm2.TPMIAlgHash) tpm2.TPMUPublicParms {
	details := tpm2.NewTPMUAsymScheme(tpm2.TPMAlgRSASSA, &tpm2.TPMSSigSchemeRSASSA{HashAlg: hash})
	if scheme == tpm2.TPMAlgRSAPSS {
		details = tpm2.NewTPMUAsymScheme(tpm2.TPMAlgRSAPSS, &tpm2.TPMSSigSchemeRSAPSS{HashAlg: hash})
	}

	return tpm2.NewTPMUPublicParms(tpm2.TPMAlgRSA, &tpm2.TPMSRSAParms{
		Symmetric: tpm2.TPMTSymDefObject{Algorithm: tpm2.TPMAlgNull},
		Scheme:    tpm2.TPMTRSAScheme{Scheme: scheme, Details: details},
		KeyBits:   tpm2.TPMKeyBits(bits),
	})
}

func newECCParameters(curve tpm2.TPMECCCurve, hash tpm2.TPMIAlgHash) tpm2.TPMUPublicParms {
	return tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
		Symmetric: tpm2.TPMTSymDefObject{Algorithm: tpm2.TPMAlgNull},
		Scheme: tpm2.TPMTECCScheme{
			Scheme:  tpm2.TPMAlgECDSA,
			Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: hash}),
		},
		CurveID: curve,
		KDF:     tpm2.TPMTKDFScheme{Scheme: tpm2.TPMAlgNull},
	})
}

func newECCPoint(x, y []byte) tpm2.TPMUPublicID {
	return tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
		X: tpm2.TPM2BECCParameter{Buffer: x}, Y: tpm2.TPM2BECCParameter{Buffer: y},
	})
}

// The key that a machine's TPM creates can be certified.
func TestReadPublicOfTPM(t *testing.T) {
	t.Parallel()

	got, err := devid.ParsePublic(tpm.NewRequest(t, tpm.NewAuthority(t).NewTPM(t)).Public)
	if err != nil {
		t.Fatal(err)
	}

	if got, ok := got.(*rsa.PublicKey); !ok || got.N.BitLen() != 2048 || got.E != 65537 {
		t.Errorf("key %+v", got)
	}
}

// Only keys with the attributes of a device identity can be certified.
func TestReadPublic(t *testing.T) {
	t.Parallel()

	ecc, long := newECCPublicKey(t), newRSAPublicKey(t)

	attributes := func(change func(*tpm2.TPMAObject)) []byte {
		return encodePublicArea(t, long, func(p *tpm2.TPMTPublic) { change(&p.ObjectAttributes) })
	}

	for name, tc := range map[string]struct {
		data []byte
		want string // part of the error; empty means no error
	}{
		"RSA":      {data: encodePublicArea(t, long, nil)},
		"ECC":      {data: encodePublicArea(t, ecc, nil)},
		"empty":    {data: nil, want: "no TPM2B_PUBLIC"},
		"short":    {data: encodePublicArea(t, ecc, nil)[:20], want: "no TPM2B_PUBLIC"},
		"followed": {data: append(encodePublicArea(t, ecc, nil), 0), want: "more than a TPM2B_PUBLIC"},
		"large":    {data: make([]byte, 2000), want: "2000 bytes"},
		"can leave its TPM": {
			data: attributes(func(a *tpm2.TPMAObject) { a.FixedTPM = false }), want: "moved out",
		},
		"can leave its parent": {
			data: attributes(func(a *tpm2.TPMAObject) { a.FixedParent = false }), want: "moved out",
		},
		"imported": {
			data: attributes(func(a *tpm2.TPMAObject) { a.SensitiveDataOrigin = false }), want: "created outside",
		},
		"decrypts": {
			data: attributes(func(a *tpm2.TPMAObject) { a.Decrypt = true }), want: "signing alone",
		},
		"does not sign": {
			data: attributes(func(a *tpm2.TPMAObject) { a.SignEncrypt = false }), want: "signing alone",
		},
		"an attestation key": {
			data: attributes(func(a *tpm2.TPMAObject) { a.Restricted = true }), want: "restricted",
		},
		"needs a policy": {
			data: attributes(func(a *tpm2.TPMAObject) { a.UserWithAuth = false }), want: "userWithAuth",
		},
		"another size": {
			data: encodePublicArea(t, long, func(p *tpm2.TPMTPublic) {
				p.Parameters = newRSAParameters(3072, tpm2.TPMAlgRSASSA, tpm2.TPMAlgSHA256)
			}), want: "2048 bits",
		},
		"even": {
			data: encodePublicArea(t, long, func(p *tpm2.TPMTPublic) {
				n := make([]byte, 256)
				n[0] = 0x80
				p.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: n})
			}), want: "even",
		},
		"PSS": {
			data: encodePublicArea(t, long, func(p *tpm2.TPMTPublic) {
				p.Parameters = newRSAParameters(2048, tpm2.TPMAlgRSAPSS, tpm2.TPMAlgSHA256)
			}), want: "RSASSA",
		},
		"SHA-1": {
			data: encodePublicArea(t, long, func(p *tpm2.TPMTPublic) {
				p.Parameters = newRSAParameters(2048, tpm2.TPMAlgRSASSA, tpm2.TPMAlgSHA1)
			}), want: "SHA-256",
		},
		"another curve": {
			data: encodePublicArea(t, ecc, func(p *tpm2.TPMTPublic) {
				p.Parameters = newECCParameters(tpm2.TPMECCNistP384, tpm2.TPMAlgSHA256)
			}), want: "P-256",
		},
		"ECDSA with SHA-512": {
			data: encodePublicArea(t, ecc, func(p *tpm2.TPMTPublic) {
				p.Parameters = newECCParameters(tpm2.TPMECCNistP256, tpm2.TPMAlgSHA512)
			}), want: "SHA-256",
		},
		"not on its curve": {
			data: encodePublicArea(t, ecc, func(p *tpm2.TPMTPublic) {
				p.Unique = newECCPoint(make([]byte, 32), append(make([]byte, 31), 1))
			}), want: "curve",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			key, err := devid.ParsePublic(tc.data)

			switch {
			case tc.want == "" && (err != nil || key == nil):
				t.Errorf("read %v, %v", key, err)
			case tc.want != "" && (!errors.Is(err, devid.ErrKeyNotCertifiable) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("read %v, %v; want an error with %q", key, err, tc.want)
			}
		})
	}
}

func FuzzReadPublic(f *testing.F) {
	f.Add([]byte{})
	f.Add(encodePublicArea(f, newRSAPublicKey(f), nil))
	f.Add(encodePublicArea(f, newECCPublicKey(f), nil))
	mixed := encodePublicArea(f, newECCPublicKey(f), nil)
	mixed[3] = byte(tpm2.TPMAlgRSA) // after the two bytes of the size
	f.Add(mixed)
	f.Add(encodePublicArea(f, newRSAPublicKey(f), func(p *tpm2.TPMTPublic) { p.ObjectAttributes.FixedTPM = false }))

	authority := mustNew(f, newCA(f, "", nil, nil))

	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := devid.ParsePublic(data)
		if (key == nil) == (err == nil) || err != nil && !errors.Is(err, devid.ErrKeyNotCertifiable) {
			t.Fatalf("%v, %v", key, err)
		}

		// Issue accepts exactly the keys that ParsePublic accepts.
		if _, issued := authority.Issue(devid.Request{PublicArea: data, RequestedAt: now}); (issued == nil) != (err == nil) {
			t.Fatalf("parse: %v, issue: %v", err, issued)
		}
	})
}
