// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Reference is the parsed name of an image.
type Reference struct {
	// Registry is host or host:port. Repository does not contain it.
	Registry, Repository string
	// Tag and Digest may both be set. Then the digest counts.
	Tag, Digest string
}

var (
	errRepository = errors.New("the repository must be lower-case words separated by slashes")
	errTag        = errors.New("the tag must be up to 128 letters, digits, dots, hyphens and underscores")
	errDigest     = errors.New("the digest must be sha256: with 64 or sha512: with 128 hexadecimal digits")
	errRegistry   = errors.New("the registry must be a host name")
)

// The grammar of names: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests
var (
	repositoryPattern = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagPattern        = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	digestPattern     = regexp.MustCompile(`^(sha256:[a-f0-9]{64}|sha512:[a-f0-9]{128})$`)
	registryPattern   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:[0-9]{1,5})?$`)
	versionPattern    = regexp.MustCompile(`^v?(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-+._].*)?$`)
)

// Parse parses the name of an image. As usual, a name without a registry refers to Docker Hub, and a
// name without a tag and a digest has the tag latest.
func Parse(image string) (Reference, error) {
	name, digest, hasDigest := strings.Cut(image, "@")
	ref := Reference{Digest: digest}

	if hasDigest && !digestPattern.MatchString(digest) {
		return Reference{}, fmt.Errorf("parse image %q: %w", image, errDigest)
	}

	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name, ref.Tag = name[:colon], name[colon+1:]
		if !tagPattern.MatchString(ref.Tag) {
			return Reference{}, fmt.Errorf("parse image %q: %w", image, errTag)
		}
	}

	if !hasDigest && ref.Tag == "" {
		ref.Tag = "latest"
	}

	registry, rest, found := strings.Cut(name, "/")
	if found && (strings.ContainsAny(registry, ".:") || registry == "localhost") {
		ref.Registry, ref.Repository = registry, rest
	} else {
		ref.Registry, ref.Repository = "docker.io", name
		if !found {
			ref.Repository = "library/" + name
		}
	}

	switch {
	case !registryPattern.MatchString(ref.Registry):
		return Reference{}, fmt.Errorf("parse image %q: %w", image, errRegistry)
	case !repositoryPattern.MatchString(ref.Repository):
		return Reference{}, fmt.Errorf("parse image %q: %w", image, errRepository)
	}

	return ref, nil
}

// ManifestReference returns the last part of the manifest's URL path: the digest or the tag.
func (r Reference) ManifestReference() string {
	if r.Digest != "" {
		return r.Digest
	}

	return r.Tag
}

// Host returns the host at which the registry serves its API.
func (r Reference) Host() string {
	if r.Registry == "docker.io" {
		return "registry-1.docker.io"
	}

	return r.Registry
}

// MinorVersion returns the release's minor version from its tag, for example 4.15. It returns false if
// the tag has no version.
func (r Reference) MinorVersion() (string, bool) {
	parts := versionPattern.FindStringSubmatch(r.Tag)
	if parts == nil {
		return "", false
	}

	major, err := strconv.Atoi(parts[1])
	if err != nil {
		return "", false
	}

	minor, err := strconv.Atoi(parts[2])

	return fmt.Sprintf("%d.%d", major, minor), err == nil
}
