// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command protogen compiles a .proto file and runs the plug-ins protoc-gen-go and protoc-gen-go-grpc on it, as protoc
// does. It needs no C++ program: protogen DIRECTORY FILE PLUGIN... writes the files next to FILE.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: protogen DIRECTORY FILE PLUGIN...")
		os.Exit(2)
	}

	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(directory, file string, plugins []string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{directory}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}

	files, err := compiler.Compile(context.Background(), file)
	if err != nil {
		return fmt.Errorf("compile %s: %w", file, err)
	}

	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file}, Parameter: proto.String("paths=source_relative"),
		ProtoFile: withImports(files[0], map[string]bool{}),
	}

	for _, plugin := range plugins {
		if err := runPlugin(directory, plugin, request); err != nil {
			return fmt.Errorf("run %s: %w", plugin, err)
		}
	}

	return nil
}

// withImports returns the descriptors of a file and of all files that it imports, each after its own imports.
func withImports(file protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[file.Path()] {
		return nil
	}

	seen[file.Path()] = true

	var out []*descriptorpb.FileDescriptorProto

	for i := range file.Imports().Len() {
		out = append(out, withImports(file.Imports().Get(i).FileDescriptor, seen)...)
	}

	return append(out, protoutil.ProtoFromFileDescriptor(file))
}

func runPlugin(directory, plugin string, request *pluginpb.CodeGeneratorRequest) error {
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}

	command := exec.Command(plugin)
	command.Stdin, command.Stderr = bytes.NewReader(input), os.Stderr

	output, err := command.Output()
	if err != nil {
		return err
	}

	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return err
	}

	if response.Error != nil {
		return errors.New(response.GetError())
	}

	for _, file := range response.GetFile() {
		if err := os.WriteFile(filepath.Join(directory, file.GetName()), []byte(file.GetContent()), 0o644); err != nil {
			return err
		}
	}

	return nil
}
