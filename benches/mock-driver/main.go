// The mock driver of Kubernetes' own end-to-end tests, on the socket that CSI_ENDPOINT names.
//
// It keeps its volumes in memory and mounts nothing. The kit is run against it, and its process is measured
// next to drivers of this toolkit.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

// A call that panics fails, and the driver goes on: a negative ListVolumesRequest.max_entries makes it panic.
func recovered(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (answer any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = status.Errorf(codes.Internal, "panic: %v", cause)
		}
	}()
	return handle(ctx, request)
}

func run() error {
	socket := strings.TrimPrefix(os.Getenv("CSI_ENDPOINT"), "unix://")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("CSI_ENDPOINT=%s: %w", socket, err)
	}
	driver := service.New(service.Config{DriverName: "mock.csi.example.org"})
	server := grpc.NewServer(grpc.UnaryInterceptor(recovered))
	csi.RegisterIdentityServer(server, driver)
	csi.RegisterControllerServer(server, driver)
	csi.RegisterNodeServer(server, driver)
	return server.Serve(listener)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
